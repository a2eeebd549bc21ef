//! The files of `rig/scenarios`, and what their heads say.
//!
//! ```text
//!   # shows: what a pass shows, in a line
//!   # boot: 2          (optional) which machine; scenarios of one machine share a boot; `systemd`: its first process
//!   # seconds: 90      (optional) how long it may be silent before it counts as hung
//!   # ci: yes          (optional) one of those that CI plays
//!   # unproven: why    (optional) was not seen to pass yet; played only when it is named
//! ```

use crate::workspace::Workspace;
use std::collections::BTreeMap;

/// One scenario.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    /// The file's name without its ending; its number decides the order.
    pub(super) name: String,
    pub(super) shows: String,
    /// Key of the machine that it is played on.
    pub(super) boot: String,
    pub(super) seconds: u64,
    /// Whether CI plays it.
    pub(super) in_ci: bool,
    /// Why nobody can say that it passes.
    pub(super) unproven: Option<String>,
}

/// Seconds, where a head does not say.
const SECONDS: u64 = 120;

/// All of them, in order.
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
    let unproven = head("unproven");
    let in_ci = head("ci").is_some_and(|yes| yes == "yes");
    Ok(Scenario { name, shows, boot: head("boot").unwrap_or_else(|| "1".into()), seconds, in_ci, unproven })
}

/// Those whose names contain what was told; all but the unproven when nothing was told.
pub(super) fn choose(all: &[Scenario], names: &[&str]) -> Result<Vec<Scenario>, String> {
    if names.is_empty() {
        return Ok(all.iter().filter(|s| s.unproven.is_none()).cloned().collect());
    }
    for name in names {
        if !all.iter().any(|s| s.name.contains(name)) {
            let known: Vec<&str> = all.iter().map(|s| s.name.as_str()).collect();
            return Err(format!("there is no scenario {name:?}; there are {}", known.join(", ")));
        }
    }
    Ok(all.iter().filter(|s| names.iter().any(|n| s.name.contains(n))).cloned().collect())
}

/// Those that CI plays.
pub(super) fn of_ci(mut all: Vec<Scenario>) -> Result<Vec<Scenario>, String> {
    all.retain(|s| s.in_ci);
    match all.is_empty() {
        // A layer that does nothing shows nothing.
        true => Err("no scenario of rig/scenarios says `# ci: yes`: nothing was played".into()),
        false => Ok(all),
    }
}

/// Grouped by machine.
pub(super) fn boots(chosen: &[Scenario]) -> BTreeMap<String, Vec<Scenario>> {
    let mut boots = BTreeMap::<String, Vec<Scenario>>::new();
    for scenario in chosen {
        boots.entry(scenario.boot.clone()).or_default().push(scenario.clone());
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
    fn names_choose_and_unknown_names_are_told() {
        let all = ["10-a", "20-b"].map(|n| parse(n.into(), "# shows: a\n").unwrap());
        assert_eq!(choose(&all, &[]).unwrap().len(), 2);
        let unproven = parse("30-c".into(), "# shows: a\n# unproven: never played\n").unwrap();
        assert_eq!(choose(std::slice::from_ref(&unproven), &[]).unwrap().len(), 0);
        assert_eq!(choose(std::slice::from_ref(&unproven), &["30"]).unwrap().len(), 1);
        assert_eq!(choose(&all, &["20"]).unwrap()[0].name, "20-b");
        assert!(choose(&all, &["c"]).unwrap_err().contains("10-a, 20-b"));
    }
}
