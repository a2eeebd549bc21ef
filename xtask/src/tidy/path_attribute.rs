//! A file is compiled in its own crate: `#[path]` leads to no file of another. A stranger looks for
//! a module in the crate that names it, and a file that several crates compile needs the imports,
//! and the dead code, of all of them.
//!
//! ```text
//!   crates/a/tests/x.rs: #[path = "../../b/tests/y.rs"]   refused: what tests share is in pregrant-testkit
//!   crates/a/tests/x.rs: #[path = "../examples/y.rs"]     the same crate's: allowed
//! ```

use super::{Source, resolve};
use std::collections::BTreeSet;

/// A file that may compile a file or a folder of another crate.
struct Exception {
    file: &'static str,
    target: &'static str,
}

/// All exceptions.
const EXCEPTIONS: &[Exception] = &[
    // An example of the host, played against the program of this crate.
    Exception {
        file: "crates/pregrant-cli/tests/commands/first_front.rs",
        target: "crates/pregrant-host/examples/first_front.rs",
    },
    // Loom's atomics stand in for those of std there.
    Exception {
        file: "crates/pregrant/tests/grant_loom/mod.rs",
        target: "crates/pregrant-loopback/src/table/v2.rs",
    },
    Exception {
        file: "crates/pregrant/tests/mailbox_loom.rs",
        target: "crates/pregrant-host/src/ports/switch/mailbox.rs",
    },
    // The switch alone: libFuzzer's build of the whole host takes minutes.
    Exception { file: "fuzz/src/lib.rs", target: "crates/pregrant-host/src/ports" },
];

/// Returns attributes that lead to another crate, and exceptions that no file needs any more.
pub fn check(sources: &[Source]) -> Vec<String> {
    let (mut offences, mut needed) = (Vec::new(), BTreeSet::new());
    for Source { path, text } in sources {
        for (line, number) in text.lines().zip(1..) {
            let attribute =
                line.trim_start().strip_prefix("#[path = \"").and_then(|rest| rest.split_once('"'));
            let Some((target, _)) = attribute else { continue };
            let target = resolve(path, target);
            if crate_of(path) == crate_of(&target) {
                continue;
            }
            let is_it = |exception: &Exception| exception.file == path && exception.target == target;
            if let Some(exception) = EXCEPTIONS.iter().position(is_it) {
                needed.insert(exception);
                continue;
            }
            offences.push(format!(
                "{path}:{number}: compiles {target}, a file of another crate: what tests share is in crates/pregrant-testkit \
                 or crates/pregrant-test-machine"
            ));
        }
    }
    let stale = EXCEPTIONS.iter().enumerate().filter(|(at, _)| !needed.contains(at));
    offences.extend(stale.map(|(_, Exception { file, target })| {
        format!("{file}: does not compile {target}: take it from EXCEPTIONS in {}", file!())
    }));
    offences
}

/// The folder of the crate that has a file; a package for a crate's tests belongs to that crate.
fn crate_of(path: &str) -> &str {
    let ends = path.match_indices('/').map(|(at, _)| at);
    let parts = if path.starts_with("crates/") || path.starts_with("linux/") { 2 } else { 1 };
    ends.take(parts).last().map_or(path, |end| &path[..end])
}

#[cfg(test)]
mod tests {
    use super::{EXCEPTIONS, Exception, Source, check};

    fn offences(path: &str, target: &str) -> usize {
        let text = format!("mod a;\n    #[path = \"{target}\"]\nmod b;\n");
        check(&[Source { path: path.into(), text }]).len() - EXCEPTIONS.len()
    }

    #[test]
    fn a_file_of_another_crate_is_refused() {
        assert_eq!(offences("crates/a/tests/x.rs", "../../b/tests/y.rs"), 1);
        assert_eq!(offences("crates/a/tests/x/main.rs", "../../../b/src/y.rs"), 1);
        assert_eq!(offences("fuzz/src/x.rs", "../../crates/a/src/y.rs"), 1);
        assert_eq!(offences("crates/a/tests/x/main.rs", "../../examples/y.rs"), 0);
        assert_eq!(offences("crates/a/src/x.rs", "x_tests.rs"), 0);
    }

    #[test]
    fn an_exception_is_needed_and_is_for_one_target() {
        let Exception { file, target } = EXCEPTIONS[0];
        let of = |target: &str| {
            let up = "../".repeat(file.matches('/').count());
            let text = format!("#[path = \"{up}{target}\"]\n");
            check(&[Source { path: file.into(), text }])
        };
        let left = of(target);
        assert_eq!(left.len(), EXCEPTIONS.len() - 1, "{left:?}");
        assert!(left.iter().all(|line| !line.starts_with(file)), "{left:?}");
        let other = of("crates/pregrant-host/examples/y.rs");
        assert_eq!(other.len(), EXCEPTIONS.len() + 1, "{other:?}");
    }
}
