//! The crates that `pregrant` is linked with, and their features. A daemon that runs as root in a
//! driver domain has no TCP/IP stack, no histograms, no pages of HTML, no client of another
//! system's disks and no store of a machine without Xen, which are the laboratory's. `cargo tree`
//! lists what the program is linked with, also what another crate brings in.
//!
//! The program does not have the paths that real Xen refuses either, which are behind a feature of
//! the core. The check holds for a program that is built alone: cargo builds a crate with the
//! features that anything built together with it asks for.
//!
//! The laboratory of README's first command, the alias `demo`, is built without the drivers of a
//! real Xen (the feature `xen`) and without another system's disks (`blkio`). If the alias or one
//! of its crates asked for these, nothing would fail, but the command would take longer: both
//! together are a quarter of its build.
//!
//! The profile by which it is installed, `packaged`, inherits from `release`, and with that the
//! lower `opt-level` of each package that `release` builds fast. So it must raise each of them
//! again.

use crate::workspace::{Workspace, read};
use std::collections::BTreeMap;

/// The package of the program.
const PRODUCT: &str = "pregrant-cli";

/// Crates that the program must not have: those that only the laboratory uses, and the laboratory
/// itself. The store's server comes with the loopback's broker (`pregrant-loopback`, feature
/// `broker`), so neither is in the program.
const NEVER: [&str; 7] =
    ["smoltcp", "hdrhistogram", "maud", "blkio", "pregrant-xenstored", "pregrant-testbed", "pregrant-lab"];

/// The feature that has the paths which real Xen refuses.
const RESEARCH: &str = "research";

/// The file with cargo's aliases.
const CONFIG: &str = ".cargo/config.toml";

/// The feature that has the drivers' code for a real Xen.
const XEN: &str = "xen";
/// The crate that has another system's disks.
const DISKS: &str = "blkio";

/// Returns the crates and features that the program, and the laboratory of the demo, must not
/// have, a line each.
pub fn check(w: &Workspace) -> Result<Vec<String>, String> {
    let mut found = offences(&tree(w, &["-p", PRODUCT])?);
    let config = read(&w.root().join(CONFIG))?;
    found.extend(slow(&tree(w, &demo(&config)?)?));
    found.extend(unoptimized(&read(&w.root().join("Cargo.toml"))?));
    Ok(found)
}

/// Returns the output of `cargo tree` for these packages: a line for each crate that they are
/// linked with.
fn tree(w: &Workspace, packages: &[&str]) -> Result<String, String> {
    let mut cargo = w.cargo(&["tree", "-e", "normal", "--prefix", "none", "--format", "{p} {f}"]);
    let out = cargo.args(packages).output().map_err(|e| format!("cargo tree: {e}"))?;
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr);
        return Err(format!("cargo tree {}: {why}", packages.join(" ")));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Returns the words of the alias `demo` that say what is built: all between `run` and `--` but the
/// profile, which `cargo tree` does not know.
fn demo(config: &str) -> Result<Vec<&str>, String> {
    let alias = config.lines().find_map(|line| line.strip_prefix("demo = \"")?.strip_suffix('"'));
    let words = alias.and_then(|alias| alias.strip_prefix("run ")?.split_once(" -- "));
    let (words, _) = words.ok_or_else(|| format!("{CONFIG}: no line `demo = \"run ... -- ...\"`"))?;
    Ok(words.split_whitespace().filter(|word| *word != "--release").collect())
}

/// Returns the violations of the demo's dependency tree, which must have neither the drivers' code
/// for a real Xen nor another system's disks.
fn slow(tree: &str) -> Vec<String> {
    let has_disks = |line: &&str| line.split_whitespace().next() == Some(DISKS);
    let xen =
        tree.lines().find(|line| has_feature(line, XEN)).map(|line| (format!("the feature {XEN}"), line));
    let disks = tree.lines().find(has_disks).map(|line| (format!("the crate {DISKS}"), line));
    let found = xen.into_iter().chain(disks);
    found
        .map(|(what, line)| {
            format!("`cargo demo` is built with {what}, which it does not use; {XEN} and {DISKS} are a quarter of its build: {line}")
        })
        .collect()
}

/// Returns true if a line of the tree is a crate of this workspace that has the feature.
fn has_feature(line: &str, feature: &str) -> bool {
    let mut words = line.split_whitespace().rev().skip_while(|word| *word == "(*)");
    line.starts_with("pregrant")
        && words.next().is_some_and(|features| features.split(',').any(|one| one == feature))
}

/// Returns the packages whose `opt-level` the profile `release` lowers in this manifest and
/// `packaged` does not raise again, a line each.
fn unoptimized(manifest: &str) -> Vec<String> {
    let raised = levels(manifest, "packaged");
    let lowered = levels(manifest, "release").into_keys();
    let left = lowered.filter(|name| raised.get(name) != Some(&"3"));
    left.map(|name| format!("Cargo.toml: [profile.packaged.package.{name}] must have `opt-level = 3`"))
        .collect()
}

/// The `opt-level` of each package for which a profile has one.
fn levels<'a>(manifest: &'a str, profile: &str) -> BTreeMap<&'a str, &'a str> {
    let head = format!("[profile.{profile}.package.");
    let (mut package, mut levels) = (None, BTreeMap::new());
    for line in manifest.lines() {
        if line.starts_with('[') {
            package = line.strip_prefix(&head).and_then(|rest| rest.strip_suffix(']'));
        } else if let (Some(name), Some(level)) = (package, line.strip_prefix("opt-level = ")) {
            levels.insert(name, level);
        }
    }
    levels
}

/// The violations of a dependency tree, which has a line `NAME VERSION (FOLDER) FEATURES` for each
/// crate. The folder is that of a crate of this workspace; a crate without features has none of the
/// last column, and one that was listed before ends with `(*)`.
fn offences(tree: &str) -> Vec<String> {
    let crates: Vec<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let linked = NEVER.into_iter().filter(|never| crates.contains(never));
    let researching = tree.lines().find(|line| has_feature(line, RESEARCH)).map(|line| {
        format!("{PRODUCT} is built with the feature {RESEARCH}, which is the laboratory's alone: {line}")
    });
    linked
        .map(|name| {
            format!(
                "{PRODUCT} is linked with {name}, which is the laboratory's alone; `cargo tree -p {PRODUCT} -e normal -i {name}` says by \
                 whom"
            )
        })
        .chain(researching)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{demo, offences, slow, unoptimized};

    #[test]
    fn a_crate_of_the_laboratory_is_refused_also_where_another_brings_it() {
        let tree = "pregrant-cli v0.1.0 (/x)\nclap v4.6.0\nsmoltcp-like v1.0.0\npregrant-host v0.1.0 (/y)\n";
        assert_eq!(offences(tree), Vec::<String>::new());
        let with = format!("{tree}smoltcp v0.14.0\nsmoltcp v0.14.0 (*)\npregrant-lab v0.1.0 (/z)\n");
        assert_eq!(offences(&with).len(), 2, "{:?}", offences(&with));
    }

    #[test]
    fn the_feature_of_the_laboratorys_paths_is_refused() {
        let tree =
            |features: &str| format!("pregrant-cli v0.1.0 (/x) \npregrant v0.1.0 (/y) {features} (*)\n");
        for features in ["", "crash-points", "crash-points,local"] {
            assert_eq!(offences(&tree(features)), Vec::<String>::new());
        }
        assert_eq!(offences(&tree("crash-points,research")).len(), 1);
    }

    #[test]
    fn the_demo_is_built_without_the_drivers_of_a_real_xen() {
        let tree = |features: &str| {
            format!("pregrant-lab v0.1.0 (/x)\npregrant-host v0.1.0 (/xen) {features} (*)\nxen v1.0.0 xen\n")
        };
        assert_eq!(slow(&tree("")), [""; 0]);
        assert!(matches!(&slow(&tree("default,xen"))[..], [one] if one.contains("pregrant-host")));
        let both = slow(&(tree("xen") + "blkio-like v1.0.0\nblkio v0.5.0\n"));
        assert!(matches!(&both[..], [_, two] if two.ends_with(": blkio v0.5.0")), "{both:?}");
    }

    #[test]
    fn the_demo_is_what_its_alias_builds() {
        let alias = demo(include_str!("../../../.cargo/config.toml"));
        assert_eq!(alias, Ok(vec!["--package", "pregrant-lab", "--no-default-features"]));
        let with = demo("[alias]\ndemo = \"run --release --package pregrant-lab -- demo\"\n");
        assert_eq!(with, Ok(vec!["--package", "pregrant-lab"]));
        assert!(demo("[alias]\nlab = \"run -- demo\"\n").is_err());
    }

    #[test]
    fn a_package_that_is_built_fast_is_optimized_where_it_is_installed() {
        let release =
            "[profile.release.package.a]\nopt-level = 0\n[profile.release.package.b]\ncodegen-units = 1\n";
        let packaged = |level: &str| format!("{release}[profile.packaged.package.a]\nopt-level = {level}\n");
        assert_eq!(unoptimized(&packaged("3")), [""; 0]);
        for left in [release.to_string(), packaged("1")] {
            assert!(matches!(&unoptimized(&left)[..], [one] if one.contains("package.a]")), "{left}");
        }
    }
}
