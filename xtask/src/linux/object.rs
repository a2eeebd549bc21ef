//! Rust's part of a module: one relocatable object for each, linked from the library of
//! `linux/core`, and what must be true of it.
//!
//! ```text
//!   linux/core --cargo, flags of .cargo/config.toml--> libpregrant_linux.a
//!        --ld -r --gc-sections, from the module's roots--> NAME.core --checks
//! ```
//! An object refers to no symbol of a kernel but memory functions and the mitigations' thunks, so
//! one serves all of them. compiler_builtins is left out: the kernel has those.

use super::frames;
use crate::tool;
use crate::workspace::{Workspace, empty_dir, output, run, write};
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-none";
const CORE: &str = "linux/core";

/// Relocations that the kernel's module loader supports.
const RELOCATIONS: [&str; 5] =
    ["R_X86_64_64", "R_X86_64_32", "R_X86_64_32S", "R_X86_64_PC32", "R_X86_64_PLT32"];

/// Symbols that an object may need besides our own C functions and the thunks of indirect branches.
const SYMBOLS: [&str; 5] = ["memcpy", "memmove", "memset", "memcmp", "__x86_return_thunk"];
const PREFIXES: [&str; 2] = ["pk_", "__x86_indirect_thunk_"];

/// A module's name, and how the functions begin that its C calls.
const MODULES: [(&str, &[&str]); 3] = [
    ("front", &["pregrant_front_", "pregrant_tx_", "pregrant_rx_"]),
    ("selftest", &["pregrant_selftest"]),
    ("back", &["pregrant_back_"]),
];

/// Builds the library, and an object for each module, below `dir`. Returns the paths of the
/// objects.
pub(super) fn build(w: &Workspace, dir: &Path) -> Result<Vec<PathBuf>, String> {
    tool::target(w, TARGET)?;
    tool::component(w, "rust-src")?;
    run(&mut cargo(w, dir, &["build", "--release", "--locked"]))?;
    let (core, target) = (w.root().join(CORE), dir.join("core"));
    let library = target.join(TARGET).join("release/libpregrant_linux.a");
    let objects = dir.join("objects");
    empty_dir(&objects)?;
    let ours = members(w, &library)?;
    run(w.program("ar").current_dir(&objects).arg("x").arg(&library).args(&ours))?;
    let of_ours = ours.iter().map(|name| objects.join(name)).collect::<Vec<_>>();
    let symbols = output(w.program("nm").arg("--defined-only").args(&of_ours))?;
    let functions = symbols.lines().filter_map(|line| line.split(' ').nth(2)).collect::<Vec<_>>();
    let link_all = |objects: &[(&str, &[&str])]| -> Result<Vec<PathBuf>, String> {
        let one = |(name, prefixes): &(&str, &[&str])| {
            let is_root = |f: &&&str| prefixes.iter().any(|prefix| f.starts_with(prefix));
            let roots = functions.iter().filter(is_root).copied().collect::<Vec<_>>();
            let linked = dir.join(format!("{name}.core"));
            link(w, &core, &of_ours, &roots, &linked).map(|()| linked)
        };
        objects.iter().map(one).collect()
    };
    for linked in link_all(&MODULES)? {
        check(w, &linked)?;
        frames::check(w, &linked)?;
    }
    // The checks know functions by their names.
    let renamed = dir.join("names");
    write(&renamed, shorter(functions.iter().copied()))?;
    for object in &of_ours {
        run(w.program("objcopy").arg("--redefine-syms").arg(&renamed).arg(object))?;
    }
    link_all(&MODULES)
}

/// Refuses warnings, as in the workspace.
pub(super) fn lint(w: &Workspace, dir: &Path) -> Result<(), String> {
    tool::target(w, TARGET)?;
    tool::component(w, "rust-src")?;
    run(&mut cargo(w, dir, &["clippy", "--release", "--locked", "--", "-D", "warnings"]))
}

/// Runs cargo in the folder whose `.cargo/config.toml` has the module's flags.
fn cargo(w: &Workspace, dir: &Path, args: &[&str]) -> Command {
    let mut cargo = w.cargo(args);
    cargo.current_dir(w.root().join(CORE)).env("CARGO_TARGET_DIR", dir.join("core"));
    cargo.env("RUSTC_BOOTSTRAP", "1");
    // A user's own flags would replace the module's.
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    cargo
}

/// Returns the objects of the library, except those of compiler_builtins.
fn members(w: &Workspace, library: &Path) -> Result<Vec<String>, String> {
    let all = output(w.program("ar").arg("t").arg(library))?;
    Ok(all.lines().filter(|name| name.starts_with("pregrant_linux")).map(String::from).collect())
}

fn link(w: &Workspace, core: &Path, objects: &[PathBuf], roots: &[&str], to: &Path) -> Result<(), String> {
    let entry = roots.first().ok_or_else(|| format!("no function is a root of {}", to.display()))?;
    let mut ld = w.program("ld");
    ld.args(["-r", "--gc-sections", "-e", entry]).args(roots.iter().flat_map(|root| ["-u", root]));
    ld.arg("-T").arg(core.join("merge.lds")).arg("-o").arg(to).args(objects);
    output(&mut ld).map(drop)
}

/// Longest symbol name. objtool makes a second symbol of each function's name, for the padding
/// before it, and a kernel's names have at most 511 bytes.
const NAME_BYTES: usize = 255;

/// Formats one line for each name that is too long, with another name that begins like it.
fn shorter<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let long = names.filter(|name| name.len() > NAME_BYTES);
    let beginning = |name: &'a str| name.get(..NAME_BYTES - 10).unwrap_or("long");
    long.enumerate().map(|(k, name)| format!("{name} {}_{k}\n", beginning(name))).collect()
}

/// Checks that an object has nothing that a kernel cannot load or that would harm the kernel.
fn check(w: &Workspace, object: &Path) -> Result<(), String> {
    let ask = |program: &str, option: &str| -> Result<String, String> {
        let mut command: Command = w.program(program);
        output(command.arg(option).arg(object))
    };
    let relocations = ask("readelf", "-rW")?;
    let kinds = relocations.split_whitespace().filter(|word| word.starts_with("R_X86_64_"));
    let kind = kinds.filter(|kind| !RELOCATIONS.contains(kind)).map(|kind| format!("a relocation {kind}"));
    let undefined = ask("nm", "-u")?;
    let symbols = undefined.lines().filter_map(|line| line.split_whitespace().last());
    let known = |name: &&str| SYMBOLS.contains(name) || PREFIXES.iter().any(|p| name.starts_with(p));
    let symbol = symbols.filter(|name| !known(name)).map(|name| format!("no such symbol: {name}"));
    let code = ask("objdump", "-d")?;
    let vector =
        |line: &&str| ["%xmm", "%ymm", "%zmm", "%st("].iter().any(|register| line.contains(register));
    let vector = code.lines().filter(vector).map(|line| format!("a vector register:{line}"));
    let sections = ask("readelf", "-SW")?;
    let room = (!sections.contains(" __patchable_function_entries "))
        .then(|| "no room before its functions, which CONFIG_CALL_PADDING wants".to_string());
    let wrong: Vec<String> = kind.chain(symbol).chain(vector).chain(room).take(20).collect();
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("{} is not for a kernel:\n{}", object.display(), wrong.join("\n"))),
    }
}

#[cfg(test)]
mod tests {
    use super::{NAME_BYTES, shorter};

    #[test]
    fn long_names_become_short_ones_that_differ() {
        let long = "_R".repeat(300);
        let lines = shorter(["short", long.as_str(), &long].into_iter());
        let new: Vec<_> = lines.lines().map(|line| line.split_once(' ').unwrap()).collect();
        assert_eq!(new.len(), 2);
        assert!(new.iter().all(|(old, new)| *old == long && new.len() <= NAME_BYTES), "{lines}");
        assert_ne!(new[0].1, new[1].1);
    }
}
