//! `cargo xtask linux`: the kernel module around the core, built and played.
//!
//! ```text
//!   object    linux/core, Rust: one relocatable object for each module, and checks of it
//!   frames    its frames of stack, and its panics
//!   declarations  linux/module/core.h, C: the functions that C and Rust share, from Rust's source
//!   kbuild    linux/module and linux/back, C: the modules, by a kernel's headers
//!   chroot    another release's headers and compiler, for its kernel
//!   debug     a kernel that finds mistakes, from Debian's source, by hand
//!   boot      the self-test modules in a plain kernel in QEMU, without Xen
//!   rules     what guests break in the back's
//! ```
//! Everything is below `target/linux`.

mod boot;
mod chroot;
mod debug;
mod declarations;
mod frames;
mod kbuild;
mod object;
pub mod rules;

use crate::package;
use crate::rig::{self, Plain};
use crate::tool;
use crate::workspace::Workspace;
use kbuild::Headers;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Selection {
    headers: Option<PathBuf>,
    /// The Debian release whose headers and compiler are used, in a separate folder.
    release: Option<String>,
    /// Number of frames in each direction by each path; None: nothing is booted.
    frames: Option<u64>,
    /// True to write only the header of the functions that C and Rust share, and to build nothing.
    header: bool,
    /// True to make the kernel that finds mistakes, and then the modules for it.
    debug: bool,
}

/// The default number of frames of the self-test.
const FRAMES: u64 = 1_000_000;

/// A kernel that the layer plays.
struct Row {
    /// The Debian release; None: this machine's headers are used, for the kernel that the rig plays
    /// in CI.
    release: Option<&'static str>,
    /// Number of frames in each direction by each path.
    frames: u64,
}

/// Every kernel that Debian serves: those of its releases, and the newest one of its backports.
const ROWS: [Row; 4] = [
    Row { release: None, frames: FRAMES },
    Row { release: Some("13"), frames: FRAMES },
    Row { release: Some("11"), frames: 10_000 },
    Row { release: Some("13-backports"), frames: 10_000 },
];
/// The release in which the layer tries the packages. A package names the kernels that it builds
/// for: in the backports there may be a newer one any day.
const PACKAGE: &str = "13";

impl Selection {
    pub fn parse(args: &[&str]) -> Result<Self, String> {
        let mut selection = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "header" => selection.header = true,
                "debug" => {
                    selection.debug = true;
                    selection.release = Some(rig::DEBUG.into());
                }
                "selftest" => selection.frames = Some(FRAMES),
                "--headers" => {
                    selection.headers = Some(args.next().ok_or("--headers wants a folder")?.into())
                }
                "--release" => {
                    selection.release = Some(args.next().ok_or("--release wants a number")?.to_string());
                }
                "--frames" => {
                    let n = args.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                    selection.frames = Some(n.ok_or("--frames wants a number")?);
                }
                other => return Err(format!("linux knows no {other:?}")),
            }
        }
        Ok(selection)
    }
}

/// Builds the modules, and runs the self-test if that is selected.
pub fn make(w: &Workspace, selection: &Selection) -> Result<(), String> {
    if selection.header {
        return declarations::make(w);
    }
    if selection.debug {
        debug::make(w, &place(w))?;
    }
    let release = selection.release.as_deref();
    let (headers, modules) = built(w, selection.headers.as_deref(), release, &objects(w)?)?;
    match selection.frames {
        Some(frames) => boot::play(w, &boot::prepare(w, &headers, release, &modules)?, frames),
        None => Ok(()),
    }
}

/// Builds the modules by this machine's headers, or by those of another release. Returns their
/// paths.
pub fn modules(w: &Workspace, release: Option<&str>) -> Result<Vec<PathBuf>, String> {
    Ok(built(w, None, release, &objects(w)?)?.1)
}

/// Returns violations, for the layer `tidy`.
pub fn check(w: &Workspace) -> Result<Vec<String>, String> {
    declarations::check(w)
}

/// The module's C files and its Kbuild.
pub fn sources(w: &Workspace) -> Result<Vec<PathBuf>, String> {
    kbuild::sources(w)
}

/// The same of the back's module.
pub fn sources_of_back(w: &Workspace) -> Result<Vec<PathBuf>, String> {
    kbuild::sources_of_back(w)
}

/// The object of one module, by the module's name.
pub fn core_of<'a>(objects: &'a [PathBuf], module: &str) -> Result<&'a Path, String> {
    let name = if module == "pregrant_back" { "back" } else { "front" };
    let found = objects.iter().find(|object| object.file_stem().is_some_and(|stem| stem == name));
    found.map(PathBuf::as_path).ok_or_else(|| format!("no object of {module}"))
}

/// The Rust objects of the modules and of the self-test, which are the same for each kernel.
pub fn objects(w: &Workspace) -> Result<Vec<PathBuf>, String> {
    tool::debian(w, "ld", "binutils")?;
    let dir = place(w);
    std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    object::build(w, &dir)
}

fn place(w: &Workspace) -> PathBuf {
    w.target().join("linux")
}

fn built(
    w: &Workspace,
    headers: Option<&Path>,
    release: Option<&str>,
    objects: &[PathBuf],
) -> Result<(Headers, Vec<PathBuf>), String> {
    for (program, package) in [("make", "make"), ("gcc", "gcc"), ("modinfo", "kmod")] {
        tool::debian(w, program, package)?;
    }
    if headers.is_none() && release.is_none() {
        tool::debian_headers(w)?;
    }
    let dir = place(w);
    let headers = match release {
        Some(rig::DEBUG) => debug::headers(&dir)?,
        Some(number) => chroot::headers(w, number, &dir)?,
        None => Headers::find(headers)?,
    };
    let place = headers.root.as_ref().unwrap_or(&dir).join(&headers.version);
    let modules = kbuild::build(w, &headers, objects, &place)?;
    for module in &modules {
        kbuild::strip(w, module)?;
        let bytes = std::fs::metadata(module).map_or(0, |file| file.len());
        println!("linux: {} ({} KiB)", module.display(), bytes >> 10);
    }
    Ok((headers, modules))
}

pub fn layer(w: &Workspace) -> Result<(), String> {
    object::lint(w, &place(w))?;
    let objects = objects(w)?;
    let has_chroot = tool::is_root(w) || tool::in_ci();
    if !has_chroot {
        println!("note: chroot wants root: one kernel of {}, and no trial of the packages", ROWS.len());
    }
    for (program, package) in boot::TOOLS.into_iter().chain([chroot::TOOL]) {
        tool::debian(w, program, package)?;
    }
    let packages = package::all(w, &objects)?;
    // A kernel in QEMU uses one processor: one is played while the next is prepared, and played.
    let mut rows = ROWS.iter().filter(|row| has_chroot || row.release.is_none());
    let prepare_next = Mutex::new(|| rows.next().map(|row| prepare(w, row, &objects)));
    let player = || {
        let prepared = || (prepare_next.lock().unwrap_or_else(PoisonError::into_inner))();
        std::iter::from_fn(prepared)
            .map(|prepared| prepared.and_then(|(plain, frames)| boot::play(w, &plain, frames)))
            .collect::<Result<Vec<()>, String>>()
    };
    std::thread::scope(|scope| {
        // The trial waits for the network and uses only one processor.
        let trial = has_chroot.then(|| scope.spawn(|| package::play(w, PACKAGE, &packages)));
        let other = scope.spawn(player);
        let played = player().map(drop);
        let played = ended(other).map(drop).and(played);
        let tried = trial.map_or(Ok(()), ended);
        tried.map_err(|why| format!("the packages in Debian {PACKAGE}: {why}")).and(played)
    })
}

/// Waits for a thread, and returns its result.
fn ended<T>(thread: ScopedJoinHandle<'_, Result<T, String>>) -> Result<T, String> {
    thread.join().unwrap_or_else(|_| Err("a thread of this program panicked".into()))
}

/// Builds the modules for a row's kernel, with its file system.
fn prepare(w: &Workspace, row: &Row, objects: &[PathBuf]) -> Result<(Plain, u64), String> {
    let start = Instant::now();
    let (headers, modules) = built(w, None, row.release, objects)?;
    let plain = boot::prepare(w, &headers, row.release, &modules)?;
    println!("linux: {} was prepared in {} s", headers.version, start.elapsed().as_secs());
    Ok((plain, row.frames))
}

#[cfg(test)]
mod tests {
    use super::Selection;

    #[test]
    fn a_command_line_says_what_to_build_and_to_play() {
        assert_eq!(Selection::parse(&[]), Ok(Selection::default()));
        let selection = Selection::parse(&["selftest", "--frames", "1000", "--headers", "/h"]).unwrap();
        assert_eq!((selection.frames, selection.headers), (Some(1000), Some("/h".into())));
        let selection = Selection::parse(&["debug"]).unwrap();
        assert!(selection.debug && selection.release.as_deref() == Some("12-debug"), "{selection:?}");
        assert_eq!(Selection::parse(&["selftest"]).unwrap().frames, Some(super::FRAMES));
        assert!(Selection::parse(&["--frames", "0"]).is_err() && Selection::parse(&["x"]).is_err());
    }
}
