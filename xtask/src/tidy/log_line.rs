//! Lines in the log that a guest could cause go through a budget: `DeviceLog`, or `LineBudget`
//! where no device is at hand.
//!
//! A line of another kind says beside it, after `LOG:`, why no guest repeats it.
//!
//! clippy's `disallowed_macros` would do this too, but Rust 1.95 ignores an `expect` on a macro's
//! call: each of these lines would need a block or a function around it.

use super::token::Token;

/// Directories of code that runs for guests.
const DRIVERS: &[&str] = &[
    "crates/pregrant-host/src/drivers/",
    "crates/pregrant-host/src/linux/",
    "crates/pregrant-host/src/ports/",
    "crates/pregrant-host/src/mapping.rs",
    "crates/pregrant-loopback/src/",
    "crates/pregrant-cli/src/back.rs",
    "crates/pregrant-cli/src/back/",
];

/// Files in which lines are counted against a budget.
const BUDGETS: &[&str] = &["crates/pregrant-host/src/drivers/device_log.rs"];

/// Levels of lines that are written unless the user sets a higher level.
const LEVELS: &[&str] = &["error", "warn", "info", "log"];

/// Largest number of lines between a call and the comment with its reason.
const NEAR: usize = 3;

/// The offences of a file, one line each.
pub fn check(path: &str, text: &str, tokens: &[Token]) -> Vec<String> {
    if BUDGETS.contains(&path) || !DRIVERS.iter().any(|drivers| path.starts_with(drivers)) {
        return Vec::new();
    }
    let lines: Vec<&str> = text.lines().collect();
    let has_reason =
        |line: usize| lines[line.saturating_sub(NEAR + 1)..line].iter().any(|l| l.contains("// LOG: "));
    let call = |pair: &[Token]| match pair {
        [name, bang] if bang.is_mark('!') && name.ident().is_some_and(|n| LEVELS.contains(&n)) => {
            Some(name.line)
        }
        _ => None,
    };
    let offence = |line: usize| {
        format!(
            "{path}:{line}: a line in the log without a budget: return it to the backend, or use a LineBudget, or say after `// LOG:` why no guest repeats it"
        )
    };
    tokens.windows(2).filter_map(call).filter(|line| !has_reason(*line)).map(offence).collect()
}

#[cfg(test)]
mod tests {
    use super::super::token::tokens;

    fn offences(path: &str, text: &str) -> usize {
        super::check(path, text, &tokens(text)).len()
    }

    #[test]
    fn a_line_in_the_drivers_has_a_budget_or_a_reason() {
        let taps = "crates/pregrant-host/src/drivers/net/taps.rs";
        assert_eq!(offences(taps, "fn f() {\n    log::warn!(\"x\");\n}\n"), 1);
        assert_eq!(offences(taps, "use log::{Level, log};\nfn f() {\n    log!(Level::Warn, \"x\");\n}\n"), 1);
        assert_eq!(offences(taps, "fn f() {\n    // LOG: once.\n    log::warn!(\"x\");\n}\n"), 0);
        assert_eq!(offences(taps, "fn f() {\n    // LOG: once.\n\n\n\n    log::warn!(\"x\");\n}\n"), 1);
        assert_eq!(offences(taps, "// log::warn!(x)\nfn f() {\n    log::debug!(\"x\");\n}\n"), 0);
        assert_eq!(offences("crates/pregrant-cli/src/top/mod.rs", "fn f() { log::warn!(\"x\"); }"), 0);
        assert_eq!(offences("crates/pregrant-host/src/drivers/device_log.rs", "fn f() { log!(a, b); }"), 0);
    }
}
