//! `cargo xtask rig`: real Xen, a Debian dom0 and Debian guests, in a machine that QEMU emulates.
//!
//! ```text
//!   packages   Debian's Xen, kernel, busybox ... fetched as files and unpacked; nothing of them is installed
//!   image      two initial file systems, dom0's and the guests', with this tree's programs and rig/ in them
//!   boot       QEMU (TCG: no KVM, no disk, no network); its console is read line by line
//!   scenario   rig/scenarios/NAME.sh, played by dom0, perhaps with several numbers of workers; a line each as it ends
//!   profile    with --profile: which functions executed what a scenario counts
//! ```
//! Dom0 and the guests are each of a release of Debian's, dom0 is PV or PVH, and vifs are served by
//! a process or by the kernel's module ([`combination`]); CI plays one combination. Everything is
//! below `target/rig`; `target/rig/log` keeps the consoles. A machine that says nothing for too
//! long, or crashes, ends the run with the log's last lines.

mod boot;
mod combination;
mod image;
mod packages;
mod plain;
mod product;
mod profile;
mod release;
mod scenario;
mod selection;
mod stand_in;

use crate::tool;
use crate::workspace::{Workspace, run};
use combination::{Back, Combination};
use release::Release;
use scenario::{Emulator, Play, Scenario};
use std::path::PathBuf;
use std::time::Instant;

pub use image::pack;
pub use plain::{Plain, is_release, is_release_of_dom0, plain, root_of_debug, sources};
pub use release::DEBUG;
pub use selection::Selection;

/// The target of programs that run inside. They are linked statically, since the guests' and dom0's
/// C library may differ from this machine's.
const TARGET: &str = "x86_64-unknown-linux-musl";

/// Examples of pregrant-host that are played inside.
const EXAMPLES: [&str; 7] = [
    "conformance",
    "cycling_back",
    "datagrams",
    "domain_time",
    "hostile_back",
    "misbehaviour",
    "store_transcript",
];

/// The folders of the rig.
pub(crate) struct Rig<'a> {
    workspace: &'a Workspace,
    dir: PathBuf,
    combination: Combination,
    /// Settings for the scenarios, on dom0's command line.
    settings: Vec<String>,
    /// The QEMU plugin that counts blocks: its file and its arguments.
    plugin: Option<String>,
}

impl<'a> Rig<'a> {
    fn new(workspace: &'a Workspace, selection: &Selection) -> Self {
        let (combination, mut settings) = (selection.combination, selection.settings.clone());
        if combination.back == Back::Module {
            settings.push("BACK=module".into());
        }
        Self { workspace, dir: workspace.target().join("rig"), combination, settings, plugin: None }
    }
}

pub fn play(w: &Workspace, selection: &Selection) -> Result<(), String> {
    let all = scenario::all(w)?;
    play_these(w, scenario::choose(&all, selection)?, selection)
}

/// The layer: plays the scenarios that ask for it, in as few boots as possible.
pub fn layer(w: &Workspace) -> Result<(), String> {
    play_these(w, scenario::of_ci(scenario::all(w)?)?, &Selection::default())
}

/// Makes the tables of the last profile again.
pub fn profile(w: &Workspace, selection: &Selection) -> Result<(), String> {
    profile::tables(&Rig::new(w, selection))
}

fn play_these(w: &Workspace, chosen: Vec<Play>, selection: &Selection) -> Result<(), String> {
    let mut rig = Rig::new(w, selection);
    let combination = rig.combination;
    std::fs::create_dir_all(&rig.dir).map_err(|e| format!("{}: {e}", rig.dir.display()))?;
    let start = Instant::now();
    // Packages that were fetched before cost nothing.
    for release in [combination.dom0, combination.guests] {
        packages::fetch(&rig, release)?;
        packages::fetch(&rig, release.programs(combination.dom0))?;
    }
    let mut programs = programs(w, chosen.iter().any(|play| play.emulator == Emulator::Counted))?;
    let by_module = combination.back == Back::Module;
    let modules = match by_module || chosen.iter().any(|play| play.scenario.module) {
        // CI uses the headers of this machine.
        true => {
            let other = |of: &Release| (of != <&Release>::default()).then_some(of.name);
            for name in ["xdp", "rulers", "parcels", "beside", "turns"] {
                programs.push(compiled(&rig, name)?);
            }
            let mut modules = crate::linux::modules(w, other(combination.guests))?;
            if combination.dom0 != combination.guests {
                modules.extend(crate::linux::modules(w, other(combination.dom0))?);
            }
            modules
        }
        false => Vec::new(),
    };
    image::make(&rig, &programs, &modules)?;
    if selection.profile {
        rig.plugin = Some(profile::plugin(&rig, &programs[0])?);
    }
    println!("rig: {combination}: images made in {:.0} s; booting", start.elapsed().as_secs_f64());
    let mut failed = Vec::new();
    let mut played = 0;
    for (machine, plays) in scenario::boots(&chosen) {
        let outcomes = boot::play(&rig, &machine, &plays)?;
        played += outcomes.len();
        let before = failed.len();
        failed.extend(outcomes.into_iter().filter(|o| !o.passed).map(|o| o.name));
        if selection.profile && failed.len() == before {
            profile::keep(&rig, &boot::log_path(&rig, &machine))?;
            profile::tables(&rig)?;
        }
    }
    println!(
        "rig: {} of {played} scenarios passed in {:.0} s",
        played - failed.len(),
        start.elapsed().as_secs_f64()
    );
    if failed.is_empty() { Ok(()) } else { Err(format!("failed on real Xen: {}", failed.join(", "))) }
}

/// Compiles a C program statically, for guests with another C library than this machine's.
fn compiled(rig: &Rig<'_>, name: &str) -> Result<PathBuf, String> {
    tool::debian(rig.workspace, "gcc", "gcc")?;
    let made = rig.dir.join(name);
    let mut gcc = rig.workspace.program("gcc");
    gcc.args(["-static", "-O2", "-Wall", "-Wextra", "-o"]).arg(&made);
    run(gcc.arg(rig.workspace.root().join("rig").join(format!("{name}.c"))))?;
    Ok(made)
}

pub fn list(w: &Workspace) -> Result<(), String> {
    for Scenario { name, shows, boot, workers, in_ci, icount, unproven, process_alone, .. } in
        scenario::all(w)?
    {
        let ci = if in_ci { ", in CI" } else { "" };
        let icount = if icount { ", instructions are counted" } else { "" };
        let each: String =
            workers.iter().map(|n| format!(", {n} worker{}", if *n == 1 { "" } else { "s" })).collect();
        let back = if process_alone.is_none() { ", module as back" } else { "" };
        println!("{name:24} [{boot}{ci}{icount}{each}{back}] {shows}");
        if let Some(why) = unproven {
            println!("{:24} not proven: {why}", "");
        }
    }
    Ok(())
}

/// Builds the programs that run inside, and returns their paths. With `counted` they are built as
/// packaged, because the results are figures.
fn programs(w: &Workspace, counted: bool) -> Result<Vec<PathBuf>, String> {
    tool::target(w, TARGET)?;
    let profile = if counted { "packaged" } else { "release" };
    let built = w.target().join(TARGET).join(profile);
    let build = |packages: &[&str]| {
        let mut cargo = w.cargo(&["build", "--profile", profile, "--target", TARGET]);
        // No one reads a backtrace there, and the image is smaller without line tables.
        cargo.args(packages).env(format!("CARGO_PROFILE_{}_DEBUG", profile.to_uppercase()), "0");
        // `release` compiles these quickly, which doubles their size, and a guest's initial file
        // system is in its memory twice.
        if !counted {
            for package in ["pregrant-cli", "pregrant-lab"] {
                cargo.args(["--config", &format!("profile.{profile}.package.{package}.opt-level=1")]);
            }
        }
        cargo
    };
    // Alone, as it is built for users: cargo builds what is built together with the features of
    // all. Crash points are for the scenario that plays them.
    run(&mut build(&["-p", "pregrant-cli", "--features", "pregrant-cli/crash-points"]))?;
    let mut others = build(&["-p", "pregrant-lab", "-p", "pregrant-host", "--bin", "pregrant-lab"]);
    others.args(["--features", "pregrant-lab/crash-points"]);
    for name in EXAMPLES {
        others.args(["--example", name]);
    }
    run(&mut others)?;
    let programs = ["pregrant", "pregrant-lab"].map(|name| built.join(name));
    product::check(w, &programs[0], &programs[1])?;
    let examples = EXAMPLES.iter().map(|name| built.join("examples").join(name));
    Ok(programs.into_iter().chain(examples).collect())
}
