//! `cargo xtask linux debug`: a kernel that finds a module's mistakes, from Debian's source.
//!
//! ```text
//!   linux-source-6.1          Debian's package; unpacked into target/linux/debug/source
//!   debug.config              all that is on: the rig's needs, lockdep, kmemleak ...
//!   make bzImage modules      long: by hand, not in CI
//!   modules_install           target/rig/debian-12-debug/root, as if unpacked from packages
//! ```
//! The release [`rig::DEBUG`] has this kernel: `cargo xtask rig --debian 12-debug`, `cargo xtask
//! linux selftest --release 12-debug`.

use super::kbuild::Headers;
use crate::rig;
use crate::tool;
use crate::workspace::{Workspace, empty_dir, read, run, write};
use std::path::{Path, PathBuf};

/// The source, as its package installs it.
const SOURCE: (&str, &str) = ("/usr/src/linux-source-6.1.tar.xz", "linux-source-6.1");
/// Tools that make a kernel, beside a compiler: a file of each, and its package.
const TOOLS: [(&str, &str); 5] = [
    ("/usr/bin/flex", "flex"),
    ("/usr/bin/bison", "bison"),
    ("/usr/bin/bc", "bc"),
    ("/usr/include/libelf.h", "libelf-dev"),
    ("/usr/include/openssl/opensslv.h", "libssl-dev"),
];
const CONFIG: &str = "xtask/src/linux/debug.config";
/// A lock of Linux that xenstored takes in two orders at each guest. lockdep says so, and is off
/// from then on, so it is made to look away from this one: file, line, the line after it.
const LOOKS_AWAY: (&str, &str, &str) = (
    "drivers/xen/gntdev.c",
    "\tmutex_init(&priv->lock);\n",
    "\tlockdep_set_novalidate_class(&priv->lock);\n",
);

fn source(dir: &Path) -> PathBuf {
    dir.join("debug/source")
}

/// The tree that was built; it has what the headers of a kernel have.
pub(super) fn headers(dir: &Path) -> Result<Headers, String> {
    Headers::find(Some(&source(dir)))
        .map_err(|e| format!("{e}: `cargo xtask linux debug` makes that kernel first"))
}

/// Makes the kernel, or what of it has changed.
pub(super) fn make(w: &Workspace, dir: &Path) -> Result<(), String> {
    for (file, package) in TOOLS.into_iter().chain([SOURCE]) {
        tool::debian_file(w, file, package)?;
    }
    let source = source(dir);
    unpack(w, &source)?;
    look_away(&source)?;
    let kernel = |args: &[&str]| {
        let mut make = w.program("make");
        make.arg("-C").arg(&source).args(args);
        make
    };
    let file = w.root().join(CONFIG);
    run(&mut kernel(&["-s", "allnoconfig", &format!("KCONFIG_ALLCONFIG={}", file.display())]))?;
    let wanted = read(&file)?;
    let missing = missing(&wanted, &read(&source.join(".config"))?);
    if !missing.is_empty() {
        return Err(format!("this source has not, or not alone, of {CONFIG}: {}", missing.join(", ")));
    }
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    run(&mut kernel(&["-s", &format!("-j{jobs}"), "bzImage", "modules"]))?;
    let version = Headers::find(Some(&source))?.version;
    let root = rig::root_of_debug(w);
    empty_dir(&root)?;
    let install = format!("INSTALL_MOD_PATH={}", root.display());
    run(&mut kernel(&["-s", "modules_install", &install, "INSTALL_MOD_STRIP=1"]))?;
    let (made, image) = (source.join("arch/x86/boot/bzImage"), format!("vmlinuz-{version}"));
    let boot = root.join("boot");
    empty_dir(&boot)?;
    std::fs::copy(&made, boot.join(&image)).map_err(|e| format!("{}: {e}", made.display()))?;
    println!("linux: {}", boot.join(image).display());
    Ok(())
}

/// Unpacks the source, unless that is done.
fn unpack(w: &Workspace, source: &Path) -> Result<(), String> {
    let done = source.join(".unpacked");
    let file = std::fs::metadata(SOURCE.0).and_then(|file| file.modified());
    let of = format!("{:?}", file.map_err(|e| format!("{}: {e}", SOURCE.0))?);
    if std::fs::read_to_string(&done).is_ok_and(|had| had == of) {
        return Ok(());
    }
    empty_dir(source)?;
    run(w.program("tar").arg("-C").arg(source).args(["--strip-components=1", "-xf", SOURCE.0]))?;
    write(&done, of)
}

fn look_away(source: &Path) -> Result<(), String> {
    let (file, line, after) = LOOKS_AWAY;
    let file = source.join(file);
    let text = read(&file)?;
    match (text.contains(after), text.matches(line).count()) {
        (true, _) => Ok(()),
        (false, 1) => write(&file, text.replace(line, &format!("{line}{after}"))),
        (false, n) => Err(format!("{}: {n} lines {:?}, and not one", file.display(), line.trim())),
    }
}

/// The lines of `wanted` that are not so in `made`, a kernel's configuration.
fn missing<'a>(wanted: &'a str, made: &str) -> Vec<&'a str> {
    let is_made = |line: &&str| match line.strip_suffix("=n") {
        Some(name) => !made.lines().any(|made| made.split_once('=').is_some_and(|(on, _)| on == name)),
        None => made.lines().any(|made| made == *line),
    };
    wanted.lines().filter(|line| line.starts_with("CONFIG_")).filter(|line| !is_made(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn a_check_that_the_source_does_not_have_is_named() {
        let wanted = "# Checks.\nCONFIG_KASAN=y\nCONFIG_LOCKDEP=y\nCONFIG_A=m\nCONFIG_B=n\nCONFIG_C=n\n";
        let made = "CONFIG_KASAN=y\n# CONFIG_LOCKDEP is not set\nCONFIG_A=y\nCONFIG_B=y\nCONFIG_CC=y\n";
        assert_eq!(missing(wanted, made), ["CONFIG_LOCKDEP=y", "CONFIG_A=m", "CONFIG_B=n"]);
    }
}
