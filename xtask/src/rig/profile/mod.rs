//! `--profile`: which functions execute what scenario 32 counts, of Xen, dom0's kernel, our
//! process and the guest's kernel.
//!
//! ```text
//!   domain_time, command, domain_time      a row is two of these, a short and a long one: four readings
//!        |                    |
//!   rig/profile/count.c                    QEMU's plugin: blocks that were executed since the last reading -> readings
//!   the boot's log                         rows; names of dom0's kernel, and of the guest's modules; where our process is
//!   nm                                     names of Xen and of our program
//!        = by function, the long run less the short one, for each frame that it had more -> groups -> tables.md, functions.tsv
//! ```
//! All of it is in `target/rig/profile`, with the combination's suffix. Xen's names are those of
//! its EFI program, as the other has none: both have the same code at the same addresses. The last
//! two rows of a table say whether all was seen: Xen's own account of dom0's time, and the sum of
//! what was counted.

mod group;
mod names;
mod row;
mod table;

use super::Rig;
use super::combination::Kind;
use super::image::{at, tool};
use group::Group;
use names::Names;
use row::{Row, Said};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use table::Counted;

const READINGS: usize = 4;
/// The function of Xen that begins to run another domain.
const SWITCH: &str = "context_switch";
/// The function of Xen that runs on an idle processor.
const IDLE: &str = "idle_loop";

/// Files of a boot, from which tables can be made later.
struct Kept {
    dir: PathBuf,
    readings: PathBuf,
    log: PathBuf,
    program: PathBuf,
}

impl Kept {
    fn of(rig: &Rig<'_>) -> Self {
        let dir = rig.dir.join(format!("profile{}", rig.combination.suffix()));
        let file = |name: &str| dir.join(name);
        Self { readings: file("readings"), log: file("log"), program: file("pregrant"), dir }
    }
}

/// Builds the plugin, and keeps a copy of the program that will run. Returns the plugin's file and
/// its arguments, for QEMU.
pub(super) fn plugin(rig: &Rig<'_>, program: &Path) -> Result<String, String> {
    if rig.combination.kind != Kind::Pv {
        return Err("--profile tells dom0 from a guest only where dom0 is PV".into());
    }
    if rig.combination.guests != rig.combination.dom0 {
        return Err("--profile knows the names of a guest's kernel where it is dom0's".into());
    }
    let kept = Kept::of(rig);
    fs::create_dir_all(&kept.dir).map_err(|e| at(&kept.dir, e))?;
    fs::copy(program, &kept.program).map_err(|e| at(program, e))?;
    let made = kept.dir.join("count.so");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden", "-o"]);
    tool(gcc.arg(&made).arg(rig.workspace.root().join("rig/profile/count.c")))?;
    let (switch, idle) = (names::place_in_xen(rig, SWITCH)?, names::place_in_xen(rig, IDLE)?);
    // QEMU separates by commas: those in a file's name are doubled.
    let file = |path: &Path| path.display().to_string().replace(',', ",,");
    Ok(format!("{},out={},switch={switch:x},idle={idle:x}", file(&made), file(&kept.readings)))
}

/// Also keeps the log of a boot that counted.
pub(super) fn keep(rig: &Rig<'_>, log: &Path) -> Result<(), String> {
    fs::copy(log, Kept::of(rig).log).map(drop).map_err(|e| at(log, e))
}

/// Writes the tables of the counts of the last boot to a file, and prints those of groups.
pub(super) fn tables(rig: &Rig<'_>) -> Result<(), String> {
    let Kept { dir, readings, log, program } = Kept::of(rig);
    let bytes = fs::read(&log).map_err(|e| at(&log, e))?;
    let said = Said::of(&String::from_utf8_lossy(&bytes));
    let with_modules = |(by, packed): (&String, &String)| {
        names::with_modules(&said.names, packed).map(|symbols| (by.clone(), symbols))
    };
    let names = Names {
        xen: names::of_xen(rig)?,
        kernel: names::of_kernel(&said.names)?,
        ours: names::of_program(&program)?,
        modules: said.module_names.iter().map(with_modules).collect::<Result<_, String>>()?,
        guests: said.guest_names.iter().map(with_modules).collect::<Result<_, String>>()?,
    };
    let places = said.places(&names::code(&program)?)?;
    let lines = BufReader::new(fs::File::open(&readings).map_err(|e| at(&readings, e))?);
    let rows = count(lines, &said.rows, &names, &places);
    let rows = rows.map_err(|e| format!("{}: {e}", readings.display()))?;
    let (groups, functions) = (table::of_groups(&rows), table::of_functions(&rows));
    let (out, all) = (dir.join("tables.md"), dir.join("functions.tsv"));
    fs::write(&out, format!("{groups}{functions}")).map_err(|e| at(&out, e))?;
    fs::write(&all, table::of_all(&rows)).map_err(|e| at(&all, e))?;
    println!("{groups}rig: these, and each row by function: {}; all: {}", out.display(), all.display());
    Ok(())
}

/// Assigns the plugin's lines to the rows, in their order.
fn count(
    lines: impl BufRead,
    rows: &[Row],
    names: &Names,
    places: &BTreeMap<String, (u64, u64)>,
) -> Result<Vec<Counted>, String> {
    // Counts of dom0 and of the guest.
    let mut counts = vec![[const { BTreeMap::<(Group, &str), i64>::new() }; 2]; rows.len()];
    let mut reading = 0;
    for line in lines.lines() {
        let line = line.map_err(|e| e.to_string())?;
        let mut words = line.split(' ');
        let first = words.next().unwrap_or_default();
        if first == "reading" {
            reading += 1;
            continue;
        }
        // Of the readings of a row the first ends what came before; the second ends the short run,
        // the fourth the long one.
        let sign = match (reading + READINGS - 1) % READINGS {
            1 => -1,
            3 => 1,
            _ => continue,
        };
        let at_row = (reading.max(1) - 1) / READINGS;
        let Some((row, counts)) = rows.get(at_row).zip(counts.get_mut(at_row)) else { continue };
        let wrong = || format!("what is {line:?}?");
        let at = u64::from_str_radix(first, 16).map_err(|_| wrong())?;
        let (is_xen, is_guests) = match words.next() {
            Some("x") => (true, false),
            Some("d") => (false, false),
            Some("y") => (true, true),
            Some("g") => (false, true),
            _ => return Err(wrong()),
        };
        let times: i64 = words.next().and_then(|n| n.parse().ok()).ok_or_else(wrong)?;
        let function = match is_guests {
            true => names.find_guests(at, is_xen, &row.by),
            false => names.find(at, is_xen, &row.by, places.get(&row.by)),
        };
        *counts[usize::from(is_guests)].entry(function).or_default() += sign * times;
    }
    if rows.is_empty() || reading != rows.len() * READINGS {
        return Err(format!("{reading} readings for {} rows: each has {READINGS}", rows.len()));
    }
    if let Some((row, _)) = rows.iter().zip(&counts).find(|(_, [dom0s, _])| dom0s.is_empty()) {
        return Err(format!("{}, {}: nothing of dom0's: did the plugin see its switches?", row.by, row.what));
    }
    let of = |row: Row, counts: BTreeMap<(Group, &str), i64>| {
        let a_frame =
            |((group, name), n): ((Group, &str), i64)| ((group, name.into()), n as f64 / row.frames);
        Counted { functions: counts.into_iter().map(a_frame).collect(), row }
    };
    let counted = rows.iter().zip(counts).flat_map(|(row, [dom0s, guests])| {
        let guests = (!guests.is_empty()).then(|| of(row.of_guest(), guests));
        std::iter::once(of(row.clone(), dom0s)).chain(guests)
    });
    Ok(counted.collect())
}

#[cfg(test)]
mod tests {
    use super::names::tests::symbols;
    use super::row::tests::row;
    use super::*;

    #[test]
    fn a_row_is_the_long_run_less_the_short_one() {
        let names = Names {
            xen: symbols(&[(0xffff82d040200000, "x")]),
            kernel: symbols(&[(0xffffffff81000000, "k")]),
            ours: symbols(&[(0x10, "o")]),
            modules: BTreeMap::new(),
            guests: BTreeMap::from([("burst".to_string(), symbols(&[(0xffffffffc0000000, "g")]))]),
        };
        let places = BTreeMap::from([("burst".to_string(), (0x7000, 0x100))]);
        let lines = "reading 0 0\nffffffff81000000 d 99\nreading 0 0\nffffffff81000004 d 5\nreading 0 0\n\
             reading 0 0\nffffffff81000008 d 25\nffff82d040200000 x 10\n7010 d 30\n\
             8010 d 1\nffffffffc0000001 g 40\n";
        let rows = [row("a", "burst", 1.0)];
        let counted = count(lines.as_bytes(), &rows, &names, &places).unwrap();
        let of = |name: &str| counted[0].functions.iter().find(|((_, n), _)| n == name).map(|(_, n)| *n);
        assert_eq!(["k", "x", "o", group::OTHERS].map(of), [Some(2.0), Some(1.0), Some(3.0), Some(0.1)]);
        let guests = counted[1].functions.iter().map(|((_, n), k)| (n.as_str(), *k)).collect::<Vec<_>>();
        assert_eq!((counted[1].row.by.as_str(), guests), ("burst, the guest", vec![("g", 4.0)]));
        let short = lines.replacen("reading", "eading", 1);
        assert!(count(short.as_bytes(), &rows, &names, &places).is_err());
        let few = &lines[..lines.rfind("reading").unwrap()];
        assert!(count(few.as_bytes(), &rows, &names, &places).err().unwrap().contains("3 readings"));
    }
}
