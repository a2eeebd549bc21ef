//! The log lines of a tap. Each vif has a budget of its own, so that a vif whose rings fail
//! repeatedly does not suppress the lines of others.
//!
//! What a guest may do: exhaust its own vif's budget, which survives its connections.

use crate::line_budget::LineBudget;
use std::fmt::Arguments;

/// Limits the log lines about one vif's interface.
#[derive(Debug, Default)]
pub struct TapLines {
    name: String,
    lines: LineBudget,
}

impl TapLines {
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), lines: LineBudget::new() }
    }

    /// Logs a warning that starts with the interface's name.
    pub fn warn(&self, text: Arguments<'_>) {
        self.lines.warn(format_args!("tap {}: {text}", self.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line_budget::KIND;
    use std::time::Duration;

    #[test]
    fn one_vif_uses_up_no_other_ones_lines() {
        let (one, other) = (TapLines::new("vif5.0"), TapLines::new("vif6.0"));
        let written = (0..1000).filter(|_| one.lines.take(Duration::ZERO).is_some()).count();
        assert_eq!(written, KIND.burst as usize);
        assert!(other.lines.take(Duration::ZERO).is_some());
    }
}
