//! One boot of the machine, and its console.
//!
//! Lines that begin with `RIG ` are dom0's to this program:
//!
//! ```text
//!   RIG begin NAME          a scenario starts; NAME:N: with N workers
//!   RIG note TEXT           a figure or a remark of it, shown beside its end
//!   RIG end NAME STATUS     its exit status
//!   RIG done                all were played; dom0 powers off
//! ```
//! A console that is silent for longer than the scenario's `seconds` is a hang; a machine that ends
//! before `RIG done` is a crash. In both cases the scenarios that were not played count as failed.

use super::Rig;
use super::combination::Kind;
use super::image::images;
use super::scenario::{Emulator, Machine, Play};
use crate::console::Console;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// Timeout until dom0 plays its first scenario.
const BOOT: Duration = Duration::from_secs(240);
/// Name of the machine whose dom0 has systemd as its first process (`# boot: systemd`).
const SYSTEMD: &str = "systemd";
/// Factor for all timeouts if a single processor of the host emulates all processors.
const ONE_PROCESSOR: u32 = 3;
/// The same for a kernel with checks, which scripts have too, as SLOWER.
const CHECKS: u32 = 4;
/// Lines of the log that a failure shows.
const TAIL: usize = 30;

pub(super) struct Outcome {
    pub(super) name: String,
    pub(super) passed: bool,
}

/// Path of the file with the console's lines.
pub(super) fn log_path(rig: &Rig<'_>, machine: &Machine) -> PathBuf {
    rig.dir.join("log").join(format!("boot-{}{}.log", machine.name(), rig.combination.suffix()))
}

/// Boots the machine, plays the scenarios, and prints a line for each.
pub(super) fn play(rig: &Rig<'_>, machine: &Machine, plays: &[Play]) -> Result<Vec<Outcome>, String> {
    let log_path = log_path(rig, machine);
    let logs = log_path.parent().unwrap_or(&rig.dir);
    std::fs::create_dir_all(logs).map_err(|e| format!("{}: {e}", logs.display()))?;
    let mut log = File::create(&log_path).map_err(|e| format!("{}: {e}", log_path.display()))?;
    let names: Vec<String> = plays.iter().map(Play::name).collect();
    let mut console = Console::start(&mut qemu(rig, machine, &names))?;
    let start = Instant::now();

    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut tail = Vec::new();
    let mut playing: Option<(&Play, Instant, Vec<String>)> = None;
    let slower = if machine.emulator == Emulator::Threads { 1 } else { ONE_PROCESSOR };
    let slower = if rig.combination.has_debug() { slower * CHECKS } else { slower };
    let mut patience = BOOT * slower;
    let ended = loop {
        let line = match console.line(patience) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => break format!("silent for {} s: hung", patience.as_secs()),
            Err(RecvTimeoutError::Disconnected) => break "the machine ended before its time".to_string(),
        };
        let _ = writeln!(log, "{:8.2} {line}", start.elapsed().as_secs_f64());
        tail.push(line.clone());
        if tail.len() > TAIL {
            tail.remove(0);
        }
        // Xen's own lines share the console and may precede a message on the same line.
        let Some(said) = line.find("RIG ").map(|at| &line[at + 4..]) else { continue };
        let (word, rest) = said.split_once(' ').unwrap_or((said, ""));
        match word {
            "begin" => {
                if let Some(play) = plays.iter().find(|play| play.name() == rest) {
                    patience = Duration::from_secs(play.scenario.seconds) * slower;
                    playing = Some((play, Instant::now(), Vec::new()));
                }
            }
            "note" => {
                if let Some((_, _, notes)) = &mut playing {
                    notes.push(rest.to_string());
                }
            }
            "end" => {
                if let Some((play, began, notes)) = playing.take() {
                    let status = rest.rsplit(' ').next().unwrap_or_default();
                    let passed = status == "0";
                    let verdict = if passed { "ok  " } else { "FAIL" };
                    println!(
                        "{verdict} {:24} {:6.1} s  {}",
                        play.name(),
                        began.elapsed().as_secs_f64(),
                        play.scenario.shows
                    );
                    notes.iter().for_each(|n| println!("       {n}"));
                    if !passed {
                        println!("       exit status {status}; the console's last lines:");
                        tail.iter().for_each(|l| println!("       | {l}"));
                    }
                    outcomes.push(Outcome { name: play.name(), passed });
                }
            }
            "done" => break String::new(),
            _ => {}
        }
    };
    // Dom0 powers off by itself; a machine that hangs is ended.
    console.end(if ended.is_empty() { Duration::from_secs(20) } else { Duration::ZERO });
    while let Ok(line) = console.line(Duration::from_millis(200)) {
        let _ = writeln!(log, "{:8.2} {line}", start.elapsed().as_secs_f64());
    }
    if !ended.is_empty() {
        let at = playing.map_or("before the first scenario, or between two".to_string(), |(s, ..)| {
            format!("in {}", s.name())
        });
        println!("FAIL machine {}: {ended}, {at}; the last lines of {}:", machine.name(), log_path.display());
        tail.iter().for_each(|l| println!("       | {l}"));
    }
    for name in plays.iter().map(Play::name) {
        if !outcomes.iter().any(|o| o.name == name) {
            println!("FAIL {name:24} not played to its end");
            outcomes.push(Outcome { name, passed: false });
        }
    }
    Ok(outcomes)
}

/// Returns the command that starts the emulator with its kernel and file systems.
fn qemu(rig: &Rig<'_>, machine: &Machine, names: &[String]) -> Command {
    let images = images(rig);
    let (dom0_image, first) = match machine.boot.as_str() {
        SYSTEMD => (images.systemd, "systemd.log_target=console systemd.show_status=no "),
        _ => (images.dom0, ""),
    };
    let (cpus, accel) = match machine.emulator {
        Emulator::Threads => ("2", "tcg,thread=multi"),
        Emulator::Counted => ("1", "tcg,thread=single"),
    };
    // A PVH dom0 wants an IOMMU for what it gives devices of its memory; the older chipset has
    // none.
    let (kind, chipset): (_, &[&str]) = match rig.combination.kind {
        Kind::Pv => ("", &["-machine", "pc"]),
        Kind::Pvh => (" dom0=pvh", &["-machine", "q35", "-device", "amd-iommu"]),
    };
    // Checks keep notes of each byte and each allocation.
    let (all, of_dom0, settings) = match rig.combination.has_debug() {
        true => ("4096", "1792M", format!("SLOWER={CHECKS} MORE_MEMORY=256 ")),
        false => ("1536", "640M", String::new()),
    };
    let xen = format!(
        "console=com1 com1=115200,8n1 dom0_mem={of_dom0},max:{of_dom0} dom0_max_vcpus={cpus} spec-ctrl=no xpti=no pv-l1tf=no \
         gnttab_max_frames=64{kind}"
    );
    let dom0 = format!(
        "console=hvc0 quiet loglevel=4 panic=-1 rootfstype=ramfs mitigations=off random.trust_cpu=on nokaslr \
         {first}{settings}rig.play={} {}",
        names.join(","),
        rig.settings.join(" ")
    );
    let mut command = Command::new("qemu-system-x86_64");
    // Without RDRAND `xl create` waits for entropy; SVM and NPT are for PVH guests; `max` and newer
    // models do not boot.
    command.args(["-accel", accel, "-cpu", "qemu64,+rdrand,+svm,+npt"]).args(chipset);
    if machine.emulator == Emulator::Counted {
        // An instruction takes a nanosecond of the machine's time; while nothing runs, the clock
        // jumps to the next timer.
        command.args(["-icount", "shift=0,sleep=off"]);
    }
    if let Some(plugin) = &rig.plugin {
        command.args(["-plugin", plugin]);
    }
    command.args(["-smp", cpus, "-m", all, "-nodefaults", "-display", "none", "-no-reboot"]);
    command.args(["-serial", "stdio"]).arg("-kernel").arg(&images.xen).args(["-append", &xen]);
    // QEMU separates modules by commas: those in arguments are doubled.
    let modules = format!("{} {},{}", images.kernel.display(), dom0.replace(',', ",,"), dom0_image.display());
    command.arg("-initrd").arg(modules);
    command
}
