//! `cargo xtask pair`: what another commit's program did beside this one, in turns.
//!
//! ```text
//!   turn 1   FIRST  bench ..   SECOND bench ..   --> a ratio for each row
//!   turn 2   SECOND bench ..   FIRST  bench ..   --> a ratio for each row
//!   ..                                           --> median and quartiles of the ratios
//! ```
//! A machine that shares its caches with others changes within seconds, so runs are short, and a
//! ratio is of two runs that followed each other.

use crate::workspace::{Workspace, output};
use serde_json::{Value, json};

/// The default number of turns.
const TURNS: usize = 21;
/// Default seconds of a row.
const SECONDS: &str = "0.05";
/// Fields that identify a row in both programs' results.
const NAMES: [&str; 7] = ["bench", "path", "dir", "size_bytes", "data_len", "queues", "depth"];
/// Further fields of the key, with the second program's names: its own arguments may have set them.
const SECOND_NAMES: [&str; 8] =
    ["mode", "workers", "rx", "rx_head", "staging_buffers", "medium", "pool", "work"];
/// The compared figure.
const RATE: &str = "frames_per_s";
/// Field with the share of the processors that others used; older programs do not write it.
const OTHERS: &str = "others";
/// Largest share of the processors that others may use, over all turns, for a ratio to be given;
/// the benches use the same limit.
const COMPARED_MOST: f64 = 0.1;

const TAKES: &str = "pair takes FIRST SECOND [--turns N] -- bench ARGS.. [-- ARGS of the second alone]";

#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    programs: [String; 2],
    turns: usize,
    args: [Vec<String>; 2],
}

impl Plan {
    pub fn parse(args: &[&str]) -> Result<Self, String> {
        let mut parts = args.split(|arg| *arg == "--");
        let (programs, turns) = match parts.next() {
            Some([first, second]) => ([first, second], Some(TURNS)),
            Some([first, second, "--turns", n]) => ([first, second], n.parse().ok()),
            _ => return Err(TAKES.into()),
        };
        let turns =
            turns.filter(|n| n % 2 == 1).ok_or("--turns takes an odd number, so that there is a median")?;
        let mut both: Vec<&str> =
            parts.next().filter(|args| args.first() == Some(&"bench")).ok_or(TAKES)?.to_vec();
        let own = parts.next().unwrap_or_default();
        if parts.next().is_some() {
            return Err(TAKES.into());
        }
        if let Some(arg) = both.iter().chain(own).find(|arg| ["--repeats", "--json"].contains(arg)) {
            return Err(format!("pair gives {arg} itself"));
        }
        if !both.contains(&"--seconds") {
            both.extend(["--seconds", SECONDS]);
        }
        both.extend(["--repeats", "1", "--json", "-"]);
        let words = |own: &[&str]| both.iter().chain(own).map(ToString::to_string).collect();
        Ok(Self { programs: programs.map(|p| p.to_string()), turns, args: [words(&[]), words(own)] })
    }
}

/// A row of one run: identifying fields, other fields, rate, and the share that others used.
type Row = (Vec<Value>, Vec<Value>, f64, Option<f64>);

/// Measures the pairs, and prints a line for each row.
pub fn measure(w: &Workspace, plan: &Plan) -> Result<(), String> {
    let programs = plan.programs.each_ref().map(|program| from_here(program));
    let run = |k: usize| rows(&output(w.program(&programs[k]).args(&plan.args[k]))?);
    let mut turns = Vec::new();
    for turn in 0..plan.turns {
        let mut both = [Vec::new(), Vec::new()];
        for k in if turn % 2 == 0 { [0, 1] } else { [1, 0] } {
            both[k] = run(k)?;
        }
        turns.push(both);
    }
    for line in lines(&turns)? {
        println!("{line}");
    }
    Ok(())
}

/// Makes a program's path absolute, since it is run in the workspace's root.
fn from_here(program: &str) -> String {
    let path = std::path::absolute(program).ok().filter(|_| program.contains('/'));
    path.and_then(|path| path.to_str().map(str::to_string)).unwrap_or_else(|| program.to_string())
}

/// The rows that a program printed.
fn rows(text: &str) -> Result<Vec<Row>, String> {
    let rows: Vec<Row> = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|row| {
            let values = |names: &[&str]| names.iter().map(|name| row[*name].clone()).collect();
            Some((values(&NAMES), values(&SECOND_NAMES), row[RATE].as_f64()?, row[OTHERS].as_f64()))
        })
        .collect();
    match rows.iter().find(|(_, _, rate, _)| *rate <= 0.0) {
        Some((names, ..)) => Err(format!("no frames came in {names:?}")),
        None if rows.is_empty() => Err(format!("no line has a {RATE}")),
        None => Ok(rows),
    }
}

/// Formats a line for each row, in the form of docs/results.
fn lines(turns: &[[Vec<Row>; 2]]) -> Result<Vec<Value>, String> {
    let names = |rows: &[Row]| rows.iter().map(|(names, ..)| names.clone()).collect::<Vec<_>>();
    let Some([_, rows]) = turns.first() else { return Ok(Vec::new()) };
    let first = names(rows);
    if turns.iter().flatten().any(|rows| names(rows) != first) {
        return Err("the programs have different rows; measure fewer in one run".into());
    }
    let line = |row: usize| {
        let of = |k: usize| turns.iter().map(|both| both[k][row].2).collect();
        let ratios = turns.iter().map(|[a, b]| b[row].2 / a[row].2).collect();
        let mut line = json!({"of": "pair"});
        let (same, too) = (NAMES.iter().zip(&rows[row].0), SECOND_NAMES.iter().zip(&rows[row].1));
        for (name, value) in same.chain(too).filter(|(_, value)| !value.is_null()) {
            line[*name] = value.clone();
        }
        let rate = |k| quartiles(of(k))[0].round();
        (line["first"], line["second"]) = (rate(0).into(), rate(1).into());
        let others: Vec<f64> = turns.iter().flatten().filter_map(|rows| rows[row].3).collect();
        let others = others.iter().sum::<f64>() / others.len().max(1) as f64;
        line["ratio"] = if others > COMPARED_MOST {
            line[OTHERS] = ((others * 100.0).round() / 100.0).into();
            "loaded".into()
        } else {
            quartiles(ratios).map(|ratio| (ratio * 1000.0).round() / 1000.0).to_vec().into()
        };
        line["turns"] = turns.len().into();
        line
    };
    Ok((0..first.len()).map(line).collect())
}

/// The median, and both quartiles.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    [last / 2, last / 4, last - last / 4].map(|at| values[at])
}

#[cfg(test)]
mod tests {
    use super::{Plan, from_here, lines, quartiles, rows};

    #[test]
    fn arguments_are_two_programs_and_what_both_run() {
        let plan =
            Plan::parse(&["old", "new", "--turns", "9", "--", "bench", "net", "--", "--buffers", "448"])
                .unwrap();
        assert_eq!((plan.programs, plan.turns), (["old".into(), "new".into()], 9));
        assert_eq!(plan.args[0].join(" "), "bench net --seconds 0.05 --repeats 1 --json -");
        assert_eq!(plan.args[1].join(" "), "bench net --seconds 0.05 --repeats 1 --json - --buffers 448");
        let plan = Plan::parse(&["old", "new", "--", "bench", "blk", "--seconds", "1"]).unwrap();
        assert_eq!(plan.args[1].join(" "), "bench blk --seconds 1 --repeats 1 --json -");
        assert!(from_here("../old").starts_with('/') && from_here("old") == "old");
        for wrong in [
            "",
            "old -- bench net",
            "old new",
            "old new -- demo",
            "old new --turns 0 -- bench net",
            "old new --turns 20 -- bench net",
            "old new -- bench net --repeats 3",
            "old new -- bench net -- --json f",
            "old new -- bench net -- a -- b",
        ] {
            assert!(Plan::parse(&wrong.split_whitespace().collect::<Vec<_>>()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_has_the_median_of_ratios_and_not_of_rates() {
        let of = |rate: f64| {
            rows(&format!(
                "a heading\n{{\"bench\": \"net\", \"path\": \"copy\", \"dir\": \"tx\", \"rx\": \"copy\", \"frames_per_s\": {rate}, \"lost\": 0}}\n"
            ))
            .unwrap()
        };
        let turns = [[of(1.0), of(2.0)], [of(10.0), of(5.0)], [of(100.0), of(300.0)]];
        let line = &lines(&turns).unwrap()[0];
        assert_eq!(
            line.to_string(),
            r#"{"bench":"net","dir":"tx","first":10.0,"of":"pair","path":"copy","ratio":[2.0,0.5,3.0],"rx":"copy","second":5.0,"turns":3}"#
        );
        assert!(lines(&[[of(1.0), Vec::new()]]).is_err());
        // Both were measured beside others.
        let beside = |others: f64| {
            rows(&format!("{{\"bench\": \"net\", \"frames_per_s\": 3.0, \"others\": {others}}}")).unwrap()
        };
        for (others, ratio, said) in [(0.05, "[1.0,1.0,1.0]", None), (0.5, "\"loaded\"", Some(0.3))] {
            let line = &lines(&[[beside(0.1), beside(others)]]).unwrap()[0];
            assert_eq!((line["ratio"].to_string(), line["others"].as_f64()), (ratio.into(), said));
        }
        assert!(rows("{}").is_err() && rows(r#"{"frames_per_s": 0}"#).is_err());
        assert_eq!(quartiles((0..9).map(f64::from).collect()), [4.0, 2.0, 6.0]);
        assert_eq!(quartiles(vec![7.0]), [7.0; 3]);
    }
}
