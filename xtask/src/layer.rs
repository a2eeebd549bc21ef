//! The layers: what each runs. docs/testing.md says what each is for, with its budget.

use crate::suite;
use crate::tally::{Job, Says, Tally};
use crate::tool;
use crate::workspace::{Workspace, run, run_all};

pub struct Layer {
    /// The name on the command line.
    pub name: &'static str,
    /// The claim that a pass shows, in a few words.
    pub shows: &'static str,
    /// Runs the layer; the error is one line.
    pub run: fn(&Workspace) -> Result<(), String>,
}

/// All layers: first the tests, which a newcomer runs, then cheap layers before expensive ones.
pub const LAYERS: &[Layer] = &[
    Layer { name: "test", shows: "unit, property, differential and end-to-end tests", run: test },
    Layer { name: "fmt", shows: "the code is formatted", run: fmt },
    Layer {
        name: "tidy",
        shows: "names, file lengths, import directions, what pregrant is linked with, links of pages",
        run: crate::tidy::run,
    },
    Layer {
        name: "units",
        shows: "systemd accepts the units of dist, and rates their exposure as low",
        run: crate::units::layer,
    },
    Layer { name: "clippy", shows: "no warnings, also in tests", run: clippy },
    Layer {
        name: "docs",
        shows: "the API's documentation builds without warnings, and the site of docs",
        run: docs,
    },
    Layer { name: "no_std", shows: "the core builds where there is no operating system", run: no_std },
    Layer { name: "arm", shows: "the crates build for Arm, and the core's tests pass there", run: arm },
    Layer {
        name: "replays",
        shows: "inputs on which fuzz targets once failed pass, on stable Rust",
        run: replays,
    },
    Layer {
        name: "long",
        shows: "either end is killed a thousand times; hostile guests, and time, beside two workers",
        run: long,
    },
    Layer {
        name: "loom",
        shows: "no lost wake-up in any order of a ring's, a worker's doorbell's or a mailbox's memory accesses",
        run: loom,
    },
    Layer { name: "miri", shows: "no undefined behaviour in the core while a peer races", run: miri },
    Layer {
        name: "fuzz",
        shows: "no peer's bytes make an end panic, leak or forward others' bytes",
        run: crate::fuzz::layer,
    },
    Layer {
        name: "linux",
        shows: "the kernel module builds, and both ends of a vif work in Debian's kernels",
        run: crate::linux::layer,
    },
    Layer {
        name: "rig",
        shows: "drivers that we did not write, on real Xen in QEMU (`# ci: yes` in rig/scenarios)",
        run: crate::rig::layer,
    },
];

/// The fuzz targets' package, which is no member of the workspace: its own tests replay what the
/// targets once found.
const FUZZ: &str = "--manifest-path=fuzz/Cargo.toml";

fn fmt(w: &Workspace) -> Result<(), String> {
    run(&mut w.cargo(&["fmt", "--all", "--check"]))?;
    run(&mut w.cargo(&["fmt", FUZZ, "--check"]))?;
    run(&mut w.cargo(&["fmt", "--manifest-path=linux/core/Cargo.toml", "--check"]))
}

fn clippy(w: &Workspace) -> Result<(), String> {
    // Examples as the programs that they are; tests have them as modules.
    const EXAMPLES: &str = "--features=pregrant/examples";
    run(&mut w.cargo(&["clippy", "--workspace", "--all-targets", EXAMPLES, "--", "-D", "warnings"]))?;
    // Without the feature `research`, as the product and the kernel module have it: no other crate
    // has code that depends on that.
    run(&mut w.cargo(&["clippy", "-p", "pregrant", "--lib", "--", "-D", "warnings"]))?;
    // Without the feature `program`, as the laboratory has it.
    const FOR_LAB: &[&str] =
        &["clippy", "-p", "pregrant-cli", "--lib", "--no-default-features", "--features=xen"];
    run(w.cargo(FOR_LAB).args(["--", "-D", "warnings"]))?;
    // Without the feature `xen` too, as `cargo demo` builds the laboratory and what it is made of.
    const FOR_DEMO: &[&str] = &["clippy", "-p", "pregrant-lab", "--no-default-features"];
    run(w.cargo(FOR_DEMO).args(["--", "-D", "warnings"]))?;
    run(w
        .cargo(&["clippy", FUZZ, "--all-targets", "--", "-D", "warnings"])
        .env("CARGO_TARGET_DIR", w.target()))
}

fn docs(w: &Workspace) -> Result<(), String> {
    run(w.cargo(&["doc", "--workspace", "--no-deps", "--all-features"]).env("RUSTDOCFLAGS", "-D warnings"))?;
    crate::book::layer(w)
}

fn no_std(w: &Workspace) -> Result<(), String> {
    const TARGET: &str = "x86_64-unknown-none";
    tool::target(w, TARGET)?;
    run(&mut w.cargo(&["build", "-p", "pregrant", "--target", TARGET]))
}

/// The core's suites that the layer `arm` plays: all but those of loom, of skipping, of another
/// feature, and those that count allocations.
const ON_ARM: &[&str] = &[
    "--lib",
    "--test",
    "blk",
    "--test",
    "device",
    "--test",
    "examples",
    "--test",
    "handles",
    "--test",
    "handshakes",
    "--test",
    "net",
    "--test",
    "ring",
    "--test",
    "shm",
    "--test",
    "wire",
];
/// Settings for shorter tests under emulation: rounds of the longest tests, and cases of a
/// property.
const FEW_ON_ARM: [(&str, &str); 2] = [("PREGRANT_TESTS", "short"), ("PROPTEST_CASES", "4")];

/// Runs the layer `arm`. Memory of Arm is weakly ordered, but qemu-user runs the code on this
/// machine's processor: this layer tests code and layouts, not the order of memory accesses, which
/// `loom` tests.
fn arm(w: &Workspace) -> Result<(), String> {
    const BARE: &str = "aarch64-unknown-none";
    const LINUX: &str = "aarch64-unknown-linux-gnu";
    tool::target(w, BARE)?;
    tool::target(w, LINUX)?;
    run(&mut w.cargo(&["check", "-p", "pregrant", "--target", BARE]))?;
    run(&mut w.cargo(&["check", "--workspace", "--target", LINUX]))?;
    if !tool::debian(w, "aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")?
        || !tool::debian(w, "qemu-aarch64", "qemu-user")?
    {
        println!("skipped: the core's tests on Arm: no compiler or no qemu-user");
        return Ok(());
    }
    let mut cargo =
        w.cargo(&["test", "-p", "pregrant", "-p", "pregrant-tests", "--target", LINUX, "--no-fail-fast"]);
    // Emulated, code that is not optimized takes longer than to optimize it.
    for package in ["pregrant-tests", "pregrant-testkit"] {
        cargo.args(["--config", &format!("profile.dev.package.{package}.opt-level=1")]);
    }
    cargo.args(ON_ARM).envs(FEW_ON_ARM);
    cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    run(cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64 -L /usr/aarch64-linux-gnu"))
}

/// Runs the layer `test`, which is also the command `cargo xtask test`.
pub fn test(w: &Workspace) -> Result<(), String> {
    tool::debian(w, "xenstore-ls", "xenstore-utils")?;
    tool::debian(w, "gcc", "gcc")?;
    tool::debian(w, "ip", "iproute2")?;
    // The kernel module's Kbuild needs make.
    tool::debian(w, "make", "make")?;
    // Programs on a guest's disk.
    tool::debian(w, "mke2fs", "e2fsprogs")?;
    tool::debian(w, "fio", "fio")?;
    tool::debian(w, "qemu-storage-daemon", "qemu-system-common")?;
    tool::debian(w, "qemu-img", "qemu-utils")?;
    let mut jobs: Vec<_> = suite::all(w)?.iter().map(|suite| suite.job(w)).collect();
    jobs.push(Job {
        command: w.cargo(&["test", "--workspace", "--no-fail-fast", "--doc"]),
        says: Says::Status,
    });
    let mut tally = Tally::default();
    let ended = tally.run_all(jobs, suite::at_once());
    println!("All tests: {tally}");
    ended
}

fn replays(w: &Workspace) -> Result<(), String> {
    run(w.cargo(&["test", FUZZ]).env("CARGO_TARGET_DIR", w.target()))
}

/// The part of a suite that the layer `long` plays: tests with these words in their names, and
/// variables that make them longer than in `test`.
struct Part {
    suite: &'static str,
    tests: &'static [&'static str],
    with: (&'static str, &'static str),
}

/// The setting with which the core's suites play all of their rounds.
const ALL_ROUNDS: (&str, &str) = ("PREGRANT_TESTS", "long");
/// The setting for a back with two worker threads.
const WORKERS: (&str, &str) = ("PREGRANT_TEST_WORKERS", "2");

const LONG: &[Part] = &[
    Part { suite: "restart", tests: &["either_end_is_killed"], with: ("PREGRANT_ROUNDS", "1000") },
    Part { suite: "backend", tests: &["bad_guests::", "control_ring::"], with: WORKERS },
    Part {
        suite: "backend",
        tests: &["misbehaviour::", "shares::", "vif_time::", "xsa_machine::"],
        with: WORKERS,
    },
    Part { suite: "no_alloc", tests: &["allocate"], with: ALL_ROUNDS },
    Part { suite: "blk", tests: &["model::"], with: ALL_ROUNDS },
    Part { suite: "net", tests: &["many_bad_requests", "xsa_396_a_back_that_cycles_gets"], with: ALL_ROUNDS },
];

/// Runs the layer `long`. It builds as `test` does, so that nothing is built again for the
/// workspace.
fn long(w: &Workspace) -> Result<(), String> {
    let suites = suite::all(w)?;
    let job = |part: &Part| {
        let suite = suites.iter().find(|suite| suite.name == part.suite);
        let mut job = suite.ok_or_else(|| format!("there is no suite {}", part.suite))?.job(w);
        job.command.args(part.tests).env(part.with.0, part.with.1);
        Ok(job)
    };
    let jobs = LONG.iter().map(job).collect::<Result<_, String>>()?;
    let mut tally = Tally::default();
    let ended = tally.run_all(jobs, suite::at_once());
    println!("Long tests: {tally}");
    ended
}

fn loom(w: &Workspace) -> Result<(), String> {
    // A target directory of its own: the flag is in every crate's fingerprint.
    let target = w.target().join("loom");
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default() + " --cfg loom";
    let mut cargo = w.cargo(&["test", "-p", "pregrant", "--release"]);
    cargo.args([
        "--test",
        "ring_loom",
        "--test",
        "halves_loom",
        "--test",
        "control_loom",
        "--test",
        "doorbell_loom",
        "--test",
        "mailbox_loom",
    ]);
    cargo.env("RUSTFLAGS", flags.trim()).env("CARGO_TARGET_DIR", target);
    // Fast enough without, and built in a fraction of the time.
    run(cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"))
}

/// The core's tests that Miri runs, each group on a core of its own because Miri has one thread:
/// the unit tests, and the tests that access shared memory, at sizes that it can finish.
const MIRI_PARTS: &[&[&str]] = &[
    &["-p", "pregrant-tests", "--test", "net", "--test", "blk"],
    &["-p", "pregrant", "--lib", "--test", "ring", "--test", "wire"],
];

/// Modules of the core, by their whole paths, that have neither unsafe code nor shared memory.
/// Their tests build trees as deep as the protocol allows, fill tables, and sort long lists.
const WITHOUT_SHARED_MEMORY: &[&str] = &[
    "xenstore::",
    "xenbus::",
    "grants::",
    "wire::",
    "sort::",
    "net::features::",
    "net::feature_keys::",
    "net::back::late_answers::",
    "net::front::own_pages::cache::",
    "net::front::own_pages::clock::",
    "net::front::own_pages::working_set::",
];

fn miri(w: &Workspace) -> Result<(), String> {
    let nightly = tool::miri(w)?;
    let part = |what: &[&str]| {
        let mut cargo = w.program("rustup");
        cargo.args(["run", &nightly, "cargo", "miri", "test", "--no-fail-fast"]).args(what);
        cargo.arg("--").args(WITHOUT_SHARED_MEMORY.iter().flat_map(|module| ["--skip", *module]));
        // Isolation is off only so that proptest may read its seeds.
        cargo.env("MIRIFLAGS", "-Zmiri-strict-provenance -Zmiri-disable-isolation");
        cargo.env("PROPTEST_CASES", "4");
        cargo
    };
    run_all(MIRI_PARTS.iter().map(|what| part(what)).collect())
}

#[cfg(test)]
mod tests {
    use super::WITHOUT_SHARED_MEMORY;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// The source files of a module at this place: its own, and those below.
    fn files(module: &Path) -> Vec<PathBuf> {
        let own = module.with_extension("rs");
        let mut all: Vec<PathBuf> = own.is_file().then_some(own).into_iter().collect();
        let mut folders = vec![module.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() { folders.push(path) } else { all.push(path) }
            }
        }
        all
    }

    fn is_unsafe(source: &str) -> bool {
        let code = source.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
        let mut words = code.flat_map(|line| line.split(|c: char| c != '_' && !c.is_alphanumeric()));
        words.any(|word| word == "unsafe")
    }

    /// A module that is renamed would be played again, a stale name would leave out another one,
    /// and unsafe code would not be played at all.
    #[test]
    fn what_miri_leaves_out_is_there_and_safe() {
        let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/pregrant/src");
        for module in WITHOUT_SHARED_MEMORY {
            let files = files(&core.join(module.trim_end_matches("::").replace("::", "/")));
            assert!(!files.is_empty(), "the core has no module {module}");
            for file in files {
                assert!(!is_unsafe(&fs::read_to_string(&file).unwrap()), "{}", file.display());
            }
        }
    }

    #[test]
    fn unsafe_code_is_seen_outside_comments() {
        assert!(is_unsafe("fn f() {\n    unsafe { g() } // it is\n}\n"));
        assert!(!is_unsafe("#![deny(unsafe_code)]\n// unsafe\n/// unsafe\nlet unsafely = 1;\n"));
    }
}
