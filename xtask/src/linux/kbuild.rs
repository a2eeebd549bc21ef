//! C's part: the modules, by a kernel's own kbuild, in a copy of `linux/module`, and the back's
//! module in a copy of `linux/back` and of the files that both have.
//!
//! Whatever warns fails: gcc, modpost, and objtool, which checks Rust's objects as it does at
//! C's.

use super::rules;
use crate::workspace::{Workspace, empty_dir, read, run, show};
use std::path::{Path, PathBuf};

/// The modules that kbuild makes in the copy of `linux/module`, and of `linux/back`.
const MODULES: [&str; 2] = ["pregrant.ko", "pregrant_selftest.ko"];
const BACK: [&str; 1] = ["pregrant_back.ko"];
/// Made of the same object and files, and those of `linux/back/selftest`.
const BACK_SELFTEST: [&str; 1] = ["pregrant_back_selftest.ko"];

/// Files of `linux/module` that the back's module is made of, too.
const OF_BOTH: [&str; 12] = [
    "both.h",
    "channel.c",
    "channel.h",
    "checksum.c",
    "core.h",
    "core.mk",
    "heap.c",
    "keys.c",
    "log.c",
    "pacing.h",
    "pregrant.h",
    "remove.h",
];

/// objtool finds itself by /proc, from 7.x on; it is mounted for this command alone.
const IN_CHROOT: &str = r#"mount -t proc proc "$0/proc" && exec chroot "$0" "$@""#;

pub(super) struct Headers {
    pub(super) dir: PathBuf,
    /// The kernel's release, as `uname -r` prints it.
    pub(super) version: String,
    /// The root folder of the headers and their compiler; None: they are this machine's.
    pub(super) root: Option<PathBuf>,
}

impl Headers {
    /// Finds the headers in `dir`, or the newest of this machine.
    pub(super) fn find(dir: Option<&Path>) -> Result<Self, String> {
        let dir = match dir {
            Some(dir) => dir.to_path_buf(),
            None => newest(Path::new("/"))?,
        };
        // `make kernelrelease` prints it without Debian's own suffix.
        let text = read(&dir.join("include/generated/utsrelease.h"))?;
        let version = text.split('"').nth(1).ok_or_else(|| format!("no release in {text:?}"))?;
        Ok(Self { version: version.to_string(), dir, root: None })
    }
}

/// The newest headers below a root.
pub(super) fn newest(root: &Path) -> Result<PathBuf, String> {
    // Not all releases have everything below `usr`.
    let places = ["usr/lib/modules", "lib/modules"].map(|place| root.join(place));
    let modules = places.iter().find(|place| place.exists()).unwrap_or(&places[0]);
    let kernels = std::fs::read_dir(modules).map_err(|e| format!("{}: {e}", modules.display()))?;
    let mut built: Vec<PathBuf> = kernels.flatten().map(|k| k.path().join("build")).collect();
    built.retain(|build| build.is_symlink() || build.is_dir());
    built.sort_by_cached_key(|build| numbers(&build.to_string_lossy()));
    built.pop().ok_or("no kernel's headers are installed: apt-get install linux-headers-amd64".to_string())
}

/// The numbers in a name: 6.1.0-9 is older than 6.1.0-56.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

pub(super) fn sources(w: &Workspace) -> Result<Vec<PathBuf>, String> {
    files(&w.root().join("linux/module"))
}

pub(super) fn sources_of_back(w: &Workspace) -> Result<Vec<PathBuf>, String> {
    let of_both = OF_BOTH.map(|name| w.root().join("linux/module").join(name));
    Ok(files(&w.root().join("linux/back"))?.into_iter().chain(of_both).collect())
}

/// The files that the self-test of the back's module has beside those.
fn selftest_of_back(w: &Workspace) -> Result<Vec<PathBuf>, String> {
    files(&w.root().join(rules::FOLDER))
}

fn files(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let files = std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    Ok(files.flatten().map(|file| file.path()).filter(|path| path.is_file()).collect())
}

/// True for a kernel that the back's module is for: a host has Debian 12's, or a newer one.
pub(super) fn has_back(version: &str) -> bool {
    !version.starts_with("5.")
}

/// Builds the modules in `dir`, and the back's and its self-test in folders there. Returns their
/// paths.
pub(super) fn build(
    w: &Workspace,
    headers: &Headers,
    objects: &[PathBuf],
    dir: &Path,
) -> Result<Vec<PathBuf>, String> {
    let (of_back, others): (Vec<_>, Vec<_>) =
        objects.iter().cloned().partition(|object| object.file_stem().is_some_and(|name| name == "back"));
    let files = sources(w)?.into_iter().chain(others);
    let mut made = make(w, headers, files, dir, &MODULES)?;
    if has_back(&headers.version) {
        let files = sources_of_back(w)?.into_iter().chain(of_back).collect::<Vec<_>>();
        let test = files.iter().cloned().chain(selftest_of_back(w)?);
        made.extend(make(w, headers, test, &dir.join("back-selftest"), &BACK_SELFTEST)?);
        made.extend(make(w, headers, files.into_iter(), &dir.join("back"), &BACK)?);
    }
    Ok(made)
}

/// Builds some modules of these files, in a copy of them in `dir`.
fn make(
    w: &Workspace,
    headers: &Headers,
    files: impl Iterator<Item = PathBuf>,
    dir: &Path,
    modules: &[&str],
) -> Result<Vec<PathBuf>, String> {
    let place = |e: std::io::Error| format!("{}: {e}", dir.display());
    empty_dir(dir)?;
    for file in files {
        let to = dir.join(file.file_name().unwrap_or_default());
        std::fs::copy(&file, &to).map_err(place)?;
    }
    let mut make = match &headers.root {
        Some(root) => {
            let mut unshare = w.program("unshare");
            unshare.args(["--mount", "sh", "-c", IN_CHROOT]).arg(root).arg("make");
            unshare
        }
        None => w.program("make"),
    };
    // The folder's name inside the chroot.
    let named = headers.root.as_ref().and_then(|root| dir.strip_prefix(root).ok());
    let named = named.map_or(dir.to_path_buf(), |inside| Path::new("/").join(inside));
    make.arg("-C").arg(&headers.dir).arg(format!("M={}", named.display())).arg("modules");
    println!("$ {}", show(&make));
    let ended = make.output().map_err(|e| format!("make does not start: {e}"))?;
    let said =
        [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    let is_warning =
        |line: &&str| ["arning:", "WARNING", "error:", "ERROR"].iter().any(|word| line.contains(word));
    // Warnings about this machine's compiler, and about BTF, which needs the kernel's own file, are
    // not about our code.
    let is_ours = |line: &&str| !line.contains("the compiler differs") && !line.contains("BTF");
    let warned = said.lines().filter(is_warning).find(is_ours);
    if !ended.status.success() || warned.is_some() {
        print!("{said}");
        return Err(warned.map_or("kbuild failed".into(), |line| format!("kbuild warns: {line}")));
    }
    let made: Vec<_> = modules.iter().map(|name| dir.join(name)).collect();
    match made.iter().find(|module| !module.exists()) {
        Some(missing) => Err(format!("kbuild made no {}", missing.display())),
        None => Ok(made),
    }
}

/// Removes debugging information, for a small initramfs.
pub(super) fn strip(w: &Workspace, module: &Path) -> Result<(), String> {
    run(w.program("strip").arg("--strip-debug").arg(module))
}

#[cfg(test)]
mod tests {
    use super::numbers;
    use crate::workspace::Workspace;

    /// The output of make for a Kbuild alone, in a kernel with this configuration.
    fn said(of: &str, configuration: &[&str]) -> String {
        let w = Workspace::find();
        let mut make = w.program("make");
        make.arg("-n").arg("-f").arg(w.root().join(of).join("Kbuild")).args(["obj=.", "none"]);
        let ended = make.args(configuration).output().expect("make runs: apt-get install make");
        String::from_utf8_lossy(&ended.stderr).into_owned()
    }

    #[test]
    fn a_kernel_that_the_core_does_not_fit_is_refused_with_words() {
        let padding = |bytes: &'static str| ["CONFIG_CALL_PADDING=y", bytes];
        for (of, driver) in [("linux/module", "xen-netfront"), ("linux/back", "xen-netback")] {
            for fits in [&[][..], &padding("CONFIG_FUNCTION_PADDING_BYTES=16")] {
                let said = said(of, fits);
                assert!(said.contains("No rule to make target 'none'"), "{fits:?}: {said}");
            }
            for (refused, why) in [
                (&["CONFIG_CFI=y"][..], "(CONFIG_CFI)"),
                (&["CONFIG_CFI_CLANG=y"], "(CONFIG_CFI)"),
                (&["CONFIG_FINEIBT=y"], "(CONFIG_CFI)"),
                (&padding("CONFIG_FUNCTION_PADDING_BYTES=59"), "59 bytes in front of a function"),
            ] {
                let said = said(of, refused);
                let stays = format!("stay with {driver}");
                assert!(said.contains(why) && said.contains(&stays), "{refused:?}: {said}");
            }
        }
    }

    #[test]
    fn the_newest_kernel_is_the_one_with_the_highest_numbers() {
        let mut kernels = ["6.1.0-56-amd64", "6.12.1-amd64", "6.1.0-9-amd64", "6.9.7-amd64"];
        kernels.sort_by_key(|name| numbers(name));
        assert_eq!(kernels, ["6.1.0-9-amd64", "6.1.0-56-amd64", "6.9.7-amd64", "6.12.1-amd64"]);
    }
}
