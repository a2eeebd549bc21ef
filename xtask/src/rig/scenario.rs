//! The files of `rig/scenarios`, and what their heads say.
//!
//! ```text
//!   # shows: what a pass shows, in a line
//!   # boot: 2          (optional) which machine; scenarios of one machine share a boot; `systemd`: its first process
//!   # seconds: 90      (optional) how long it may be silent before it counts as hung
//!   # workers: 1 2     (optional) played once with each of these for `pregrant back --workers`; else with what it takes itself
//!   # ci: yes          (optional) one of those that CI plays, once
//!   # icount: yes      (optional) where QEMU counts: one processor, and a microsecond of its clock is 1000 instructions
//!   # module: yes      (optional) guests have linux/'s module for their kernel, /rig/pregrant.ko
//!   # back: any        (optional) vifs are served by `back` alone: with `--back module` that is linux/back's module
//!   # back: module     (optional) or it plays the module in any case
//!   # back: process: why   (optional) or its subject is the process. Without a line it names its backs itself, or has none
//!   # unproven: why    (optional) was not seen to pass yet; played only when it is named
//! ```

use super::combination::{Back, Kind};
use super::selection::Selection;
use crate::workspace::Workspace;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    /// The name of the file without its suffix; its number decides the order.
    pub(super) name: String,
    pub(super) shows: String,
    /// Key of the machine that it is played on.
    pub(super) boot: String,
    pub(super) seconds: u64,
    /// Numbers of worker threads, one for each play; empty: there is one play, with the default
    /// number.
    pub(super) workers: Vec<u16>,
    pub(super) in_ci: bool,
    /// True if the scenario needs a machine whose clock counts instructions.
    pub(super) icount: bool,
    /// Whether guests want the kernel module.
    pub(super) module: bool,
    /// The reason why it is not played with the module as back; None: it is.
    pub(super) process_alone: Option<String>,
    /// The reason why the scenario is not known to pass.
    pub(super) unproven: Option<String>,
}

/// The default timeout in seconds.
const SECONDS: u64 = 120;

/// All scenarios, in order.
pub(super) fn all(w: &Workspace) -> Result<Vec<Scenario>, String> {
    let dir = w.root().join("rig/scenarios");
    let files = std::fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut found = Vec::new();
    for path in files.flatten().map(|f| f.path()) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        found.push(parse(name, &text)?);
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn parse(name: String, text: &str) -> Result<Scenario, String> {
    let head = |key: &str| {
        let mut lines = text.lines().take_while(|l| l.starts_with('#'));
        lines.find_map(|l| {
            Some(l.strip_prefix("# ")?.strip_prefix(key)?.strip_prefix(": ")?.trim().to_string())
        })
    };
    let shows = head("shows").ok_or_else(|| format!("rig/scenarios/{name}.sh: no line `# shows: ...`"))?;
    let seconds = match head("seconds") {
        None => SECONDS,
        Some(n) => {
            n.parse().map_err(|_| format!("rig/scenarios/{name}.sh: `# seconds: {n}` is no number"))?
        }
    };
    let workers = head("workers").map_or(Ok(Vec::new()), |list| counts(list.split_whitespace()));
    let workers = workers.map_err(|e| format!("rig/scenarios/{name}.sh: `# workers:`: {e}"))?;
    let unproven = head("unproven");
    let in_ci = head("ci").is_some_and(|yes| yes == "yes");
    let icount = head("icount").is_some_and(|yes| yes == "yes");
    let module = head("module").is_some_and(|yes| yes == "yes");
    let process_alone = match head("back") {
        None => Some("it says itself who serves its vifs, or has none".into()),
        Some(back) if back == "any" || back == "module" => None,
        Some(back) => match back.split_once(": ") {
            Some(("process", why)) => Some(why.into()),
            _ => {
                return Err(format!(
                    "rig/scenarios/{name}.sh: `# back: {back}` is not `any`, `module` or `process: why`"
                ));
            }
        },
    };
    let boot = head("boot").unwrap_or_else(|| "1".into());
    Ok(Scenario { name, shows, boot, seconds, workers, in_ci, icount, module, process_alone, unproven })
}

/// Parses numbers of worker threads.
pub(super) fn counts<'a>(list: impl Iterator<Item = &'a str>) -> Result<Vec<u16>, String> {
    let count =
        |n: &str| n.parse().ok().filter(|n| *n > 0).ok_or_else(|| format!("{n:?} is no number above 0"));
    let counts: Vec<u16> = list.map(count).collect::<Result<_, _>>()?;
    if counts.is_empty() { Err("a number is wanted".into()) } else { Ok(counts) }
}

/// One run of a scenario.
#[derive(Clone, Debug)]
pub(super) struct Play {
    pub(super) scenario: Scenario,
    pub(super) workers: Option<u16>,
    pub(super) emulator: Emulator,
}

impl Play {
    /// The name for dom0: `20-linux-guest`, or with workers `20-linux-guest:2`.
    pub(super) fn name(&self) -> String {
        match self.workers {
            Some(n) => format!("{}:{n}", self.scenario.name),
            None => self.scenario.name.clone(),
        }
    }
}

/// The scenarios whose names contain the given words; without words all but the unproven. Each is
/// played with each number of workers; with the module as back once, if it is for that: a line says
/// which are not.
pub(super) fn choose(all: &[Scenario], selection: &Selection) -> Result<Vec<Play>, String> {
    for name in &selection.names {
        if !all.iter().any(|s| s.name.contains(name)) {
            let known: Vec<&str> = all.iter().map(|s| s.name.as_str()).collect();
            return Err(format!("there is no scenario {name:?}; there are {}", known.join(", ")));
        }
    }
    let chosen = all.iter().filter(|s| match selection.names.is_empty() {
        true => s.unproven.is_none(),
        false => selection.names.iter().any(|n| s.name.contains(n)),
    });
    let by_module = selection.combination.back == Back::Module;
    let (skipped, chosen): (Vec<_>, Vec<_>) = chosen.partition(|s| by_module && s.process_alone.is_some());
    for Scenario { name, process_alone, .. } in skipped {
        println!("skipped {name}: {}", process_alone.as_deref().unwrap_or_default());
    }
    if by_module && chosen.is_empty() {
        return Err("none of these scenarios is played with the module as back".into());
    }
    let plays = chosen.into_iter().flat_map(|scenario| {
        let counts = if selection.workers.is_empty() { &scenario.workers } else { &selection.workers };
        let counts = match counts.is_empty() || by_module {
            true => vec![None],
            false => counts.iter().copied().map(Some).collect(),
        };
        let emulator = Emulator::of(scenario, selection);
        counts.into_iter().map(move |workers| Play { scenario: scenario.clone(), workers, emulator })
    });
    Ok(plays.collect())
}

pub(super) fn of_ci(all: Vec<Scenario>) -> Result<Vec<Play>, String> {
    let chosen = all.into_iter().filter(|s| s.in_ci);
    let selection = Selection::default();
    let plays: Vec<Play> = chosen
        .map(|scenario| Play { emulator: Emulator::of(&scenario, &selection), scenario, workers: None })
        .collect();
    match plays.is_empty() {
        // A layer that does nothing shows nothing.
        true => Err("no scenario of rig/scenarios says `# ci: yes`: nothing was played".into()),
        false => Ok(plays),
    }
}

/// How QEMU emulates the processors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Emulator {
    Threads,
    /// One processor, whose instructions are counted: with more, the emulator would choose which of
    /// them runs when. It also avoids a fault: a dom0 with translated memory crashes within seconds
    /// if QEMU emulates two processors, in one thread or in two.
    Counted,
}

impl Emulator {
    /// The machine of a scenario, in the dom0 that was selected.
    fn of(scenario: &Scenario, selection: &Selection) -> Self {
        match selection.icount || scenario.icount || selection.combination.kind == Kind::Pvh {
            true => Self::Counted,
            false => Self::Threads,
        }
    }
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Machine {
    /// The scenario's `# boot:` line.
    pub(super) boot: String,
    pub(super) emulator: Emulator,
}

impl Machine {
    /// The name of the machine's log.
    pub(super) fn name(&self) -> String {
        let emulator = match self.emulator {
            Emulator::Threads => "",
            Emulator::Counted => "-icount",
        };
        format!("{}{emulator}", self.boot)
    }
}

pub(super) fn boots(chosen: &[Play]) -> BTreeMap<Machine, Vec<Play>> {
    let mut boots = BTreeMap::<Machine, Vec<Play>>::new();
    for play in chosen {
        let machine = Machine { boot: play.scenario.boot.clone(), emulator: play.emulator };
        boots.entry(machine).or_default().push(play.clone());
    }
    boots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_what_is_shown() {
        let s = parse("10-x".into(), "# shows: pings\n# seconds: 7\n\n# boot: 9\n").unwrap();
        assert_eq!((s.shows.as_str(), s.seconds, s.boot.as_str(), s.in_ci), ("pings", 7, "1", false));
        assert!(parse("10-x".into(), "# shows: pings\n# ci: yes\n").unwrap().in_ci);
        assert!(parse("10-x".into(), "echo\n").is_err());
        assert!(parse("10-x".into(), "# shows: a\n# seconds: b\n").is_err());
        assert_eq!(parse("10-x".into(), "# shows: a\n# workers: 1 2\n").unwrap().workers, [1, 2]);
        for wrong in ["0", "x", "1,2", "1 0"] {
            let reported = parse("10-x".into(), &format!("# shows: a\n# workers: {wrong}\n")).unwrap_err();
            assert!(reported.contains("10-x.sh"), "{reported}");
        }
    }

    #[test]
    fn what_counts_instructions_has_a_machine_of_its_own() {
        let all =
            ["# shows: a\n# icount: yes\n", "# shows: a\n"].map(|head| parse("32-c".into(), head).unwrap());
        let machines = |args: &[&str]| {
            let plays = choose(&all, &Selection::parse(args).unwrap()).unwrap();
            boots(&plays).keys().map(Machine::name).collect::<Vec<_>>()
        };
        assert_eq!(machines(&[]), ["1", "1-icount"]);
        assert_eq!(machines(&["--icount"]), ["1-icount"]);
        assert_eq!(machines(&["--dom0", "pvh"]), ["1-icount"]);
    }

    #[test]
    fn a_layer_that_would_play_nothing_fails() {
        let scenario = |head: &str| parse("10-x".into(), head).unwrap();
        let (in_ci, not) = (scenario("# shows: a\n# ci: yes\n"), scenario("# shows: a\n# ci: no\n"));
        assert_eq!(of_ci(vec![in_ci, not.clone()]).unwrap().len(), 1);
        assert!(of_ci(vec![not]).unwrap_err().contains("nothing was played"));
        assert!(of_ci(Vec::new()).is_err());
    }

    #[test]
    fn names_choose_and_unknown_names_are_reported() {
        let all = ["10-a", "20-b"].map(|n| parse(n.into(), "# shows: a\n").unwrap());
        let selection = |args: &[&str]| Selection::parse(args).unwrap();
        assert_eq!(choose(&all, &selection(&[])).unwrap().len(), 2);
        let unproven = parse("30-c".into(), "# shows: a\n# unproven: never played\n").unwrap();
        assert_eq!(choose(&[all[0].clone(), unproven.clone()], &selection(&[])).unwrap().len(), 1);
        assert_eq!(choose(std::slice::from_ref(&unproven), &selection(&[])).unwrap().len(), 0);
        assert_eq!(choose(std::slice::from_ref(&unproven), &selection(&["30"])).unwrap().len(), 1);
        assert_eq!(choose(&all, &selection(&["20"])).unwrap()[0].name(), "20-b");
        assert!(choose(&all, &selection(&["c"])).unwrap_err().contains("10-a, 20-b"));
    }

    #[test]
    fn with_the_module_as_back_those_are_played_that_are_for_any() {
        let scenario = |head: &str| parse("10-x".into(), &format!("# shows: a\n{head}\n"));
        let any = scenario("# workers: 1 2\n# back: any").unwrap();
        let process = scenario("# back: process: it is killed").unwrap();
        let neither = scenario("").unwrap();
        let names = |all: &[Scenario], args: &[&str]| {
            let plays = choose(all, &Selection::parse(args).unwrap())?;
            Ok::<_, String>(plays.iter().map(Play::name).collect::<Vec<_>>())
        };
        let module = scenario("# back: module").unwrap();
        assert_eq!(names(&[module], &["--back", "module"]).unwrap(), ["10-x"]);
        let all = [any, process, neither];
        assert_eq!(names(&all, &["--back", "module"]).unwrap(), ["10-x"]);
        assert_eq!(names(&all, &[]).unwrap(), ["10-x:1", "10-x:2", "10-x", "10-x"]);
        assert!(names(&all[1..], &["--back", "module"]).unwrap_err().contains("module"));
        assert_eq!(all[1].process_alone.as_deref(), Some("it is killed"));
        for wrong in ["# back: both", "# back: process", "# back: process:"] {
            assert!(scenario(wrong).unwrap_err().contains("10-x.sh"), "{wrong}");
        }
    }

    #[test]
    fn each_number_of_workers_is_a_play_but_in_ci() {
        let all = ["# shows: a\n# ci: yes\n# workers: 1 2\n", "# shows: a\n"];
        let all = all.map(|head| parse("20-b".into(), head).unwrap());
        let names = |args: &[&str]| {
            let plays = choose(&all, &Selection::parse(args).unwrap()).unwrap();
            plays.iter().map(Play::name).collect::<Vec<_>>()
        };
        assert_eq!(names(&[]), ["20-b:1", "20-b:2", "20-b"]);
        assert_eq!(names(&["--workers", "1,3"]), ["20-b:1", "20-b:3", "20-b:1", "20-b:3"]);
        let in_ci = of_ci(all.to_vec()).unwrap();
        assert_eq!(in_ci.iter().map(Play::name).collect::<Vec<_>>(), ["20-b"]);
    }
}
