//! Every input that is kept, played once without libFuzzer: what was reached is still reached
//! without a finding, and what was found once stays mended.

use pregrant_fuzz::{TARGETS, Target};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of inputs that a target may keep in the project.
const CORPUS_BYTES: u64 = 256 * 1024;

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn inputs(folder: &str, target: &Target) -> Vec<PathBuf> {
    let dir = package().join(folder).join(target.name);
    let Ok(entries) = fs::read_dir(&dir) else { return Vec::new() };
    entries.map(|e| e.expect("a folder that can be listed").path()).collect()
}

/// Prints the input's path when a target panics.
struct Playing<'a>(&'a Path);

impl Drop for Playing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the input was {}", self.0.display());
        }
    }
}

fn play(folder: &str) -> usize {
    let mut played = 0;
    for target in TARGETS {
        for path in inputs(folder, target) {
            let input = fs::read(&path).expect("a file that can be read");
            let playing = Playing(&path);
            (target.play)(&input);
            drop(playing);
            played += 1;
        }
    }
    played
}

#[test]
fn every_input_of_the_corpora() {
    assert!(play("corpus") > 0);
    for target in TARGETS {
        let inputs = inputs("corpus", target);
        let bytes: u64 = inputs.iter().map(|p| p.metadata().expect("a file").len()).sum();
        assert!(!inputs.is_empty(), "{} has no corpus: cargo xtask fuzz {} --keep", target.name, target.name);
        assert!(bytes <= CORPUS_BYTES, "{}'s corpus has {bytes} bytes", target.name);
    }
}

#[test]
fn every_regression() {
    play("regressions");
}

/// Inputs in a folder that no target has would never be played.
#[test]
fn every_folder_has_its_target_and_every_target_its_binary() {
    let names: BTreeSet<String> = TARGETS.iter().map(|t| t.name.into()).collect();
    let listed = |folder: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(package().join(folder)).into_iter().flatten().flatten();
        entries.filter_map(|e| Some(e.path().file_stem()?.to_str()?.to_owned())).collect()
    };
    assert_eq!(listed("fuzz_targets"), names);
    assert_eq!(listed("corpus"), names);
    assert!(listed("regressions").is_subset(&names));
}
