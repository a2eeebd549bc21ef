//! The rules that guests break in the self-test of the back's module: their names, from its source.

use crate::workspace::{Workspace, read};

/// The folder of the self-test, from the root.
pub(super) const FOLDER: &str = "linux/back/selftest";
/// The files with rules.
const FILES: [&str; 5] = ["rules_tx.c", "rules_rx.c", "rules_shared.c", "rules_data_ring.c", "rules_vif.c"];

/// The names of all rules.
pub(super) fn names(w: &Workspace) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for file in FILES {
        let names = of(&read(&w.root().join(FOLDER).join(file))?);
        if names.is_empty() {
            return Err(format!("{FOLDER}/{file}: no rule"));
        }
        all.extend(names);
    }
    Ok(all)
}

/// The names of the rules in a list of C: each is `RULE(name` or `RULE(name, ..`.
pub fn of(text: &str) -> Vec<String> {
    let rows = text.lines().filter_map(|line| line.trim_start().strip_prefix("RULE("));
    rows.filter_map(|row| row.split([',', ')']).next()).map(String::from).collect()
}

/// What a self-test that has not kept all rules, each of which must have a line, has said.
pub(super) fn verdict(log: &[String], rules: &[String]) -> Result<(), String> {
    for rule in rules {
        let line = format!("selftest rule {rule} kept");
        if !log.iter().any(|said| said.contains(&line)) {
            return Err(format!("the back's self-test did not say that the rule {rule} is kept"));
        }
    }
    let last = format!("selftest passed: each is kept, {} rules", rules.len());
    match log.iter().any(|line| line.contains(&last)) {
        true => Ok(()),
        false => Err(format!("the machine did not say {last:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{of, verdict};

    #[test]
    fn each_rule_of_a_list_must_have_a_line() {
        let rules =
            of("#define RULE(function)\nx[] = {\n\tRULE(one),\n\tRULE(xsa_39_two, .ends = true),\n\t{},\n");
        assert_eq!(rules, ["one", "xsa_39_two"]);
        let log = |lines: &[&str]| lines.iter().map(|line| line.to_string()).collect::<Vec<_>>();
        let [one, two] = ["[ 1.0] b: selftest rule one kept: x", "b: selftest rule xsa_39_two kept: x"];
        let last = "b: selftest passed: each is kept, 2 rules";
        assert_eq!(verdict(&log(&[one, two, last]), &rules), Ok(()));
        assert!(verdict(&log(&[one, last]), &rules).unwrap_err().contains("xsa_39_two"));
        assert!(verdict(&log(&[one, two, "b: selftest passed: each is kept, 3 rules"]), &rules).is_err());
    }
}
