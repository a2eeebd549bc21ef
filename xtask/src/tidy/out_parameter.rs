//! C has Rust write to memory that no one may have written before: not a `&mut` to numbers, which
//! would have to be values already, but to `MaybeUninit` of them.
//!
//! ```text
//!   extern "C" fn NAME(.., to: &mut [u64; 8])    refused: C's variable is not initialised
//!   extern "C" fn NAME(front: &mut Front, ..)    ours, behind a pointer that C only keeps
//! ```

use super::Source;

const CORE: &str = "linux/core/src/";

/// Returns one line for each function that C calls with such a parameter.
pub fn check(Source { path, text }: &Source) -> Vec<String> {
    if !path.starts_with(CORE) {
        return Vec::new();
    }
    let functions = text.split("extern \"C\" fn ").skip(1);
    functions
        .filter_map(|rest| {
            let (name, rest) = rest.split_once('(')?;
            let (parameters, _) = rest.split_once(')')?;
            // Names of our types have a capital; those of numbers, and arrays, have none.
            let is_plain = |to: &str| to.starts_with(|c: char| c == '[' || c.is_ascii_lowercase());
            let plain = parameters.split("&mut ").skip(1).find(|to| is_plain(to))?;
            let plain = plain.split(',').next().unwrap_or(plain).trim();
            Some(format!(
                "{path}: {name} has `&mut {plain}`: C need not have written that before: take `&mut MaybeUninit<..>`"
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_c_has_not_written_is_no_value() {
        let of = |path: &str, text: &str| check(&Source { path: path.into(), text: text.into() }).len();
        let file = "linux/core/src/front.rs";
        assert_eq!(of(file, "pub extern \"C\" fn a(front: &Front, to: &mut [u64; 8]) {}"), 1);
        assert_eq!(
            of(file, "pub unsafe extern \"C\" fn a(\n    rx: &mut Rx,\n    short: &mut bool,\n) {}"),
            1
        );
        assert_eq!(of(file, "pub extern \"C\" fn a(rx: &mut Rx, to: &mut MaybeUninit<[u64; 8]>) {}"), 0);
        assert_eq!(of(file, "fn a(to: &mut [u64; 8]) {}"), 0);
        assert_eq!(of("crates/x.rs", "extern \"C\" fn a(to: &mut bool) {}"), 0);
    }
}
