//! A strict reader of Prometheus' text format, version 0.0.4, which tests the text that we write.
//! It is small, and of our own, since the one crate that is as strict has the LGPL.
//!
//! ```text
//!   # HELP name text      once for a family, before its samples, HELP and then TYPE
//!   # TYPE name kind
//!   name{label="value",...} number     below its family's TYPE and no other; of a histogram with _bucket, _sum, _count behind the name
//! ```
//! Refused: a family that comes twice, a series (name and labels, in any order) that does, a label
//! twice, bad escapes, a number that is none, a counter or histogram below 0, buckets that fall or
//! do not end with `+Inf`, and a histogram whose `_count` is not its last bucket.

use std::collections::{BTreeMap, BTreeSet};

type Labels = BTreeMap<String, String>;

/// Checks a text; returns the type of each family by name.
///
/// # Errors
/// The first line that is wrong, and why.
pub fn check(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut reader = Reader::default();
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line has no end".into());
    }
    for line in text.lines() {
        reader.line(line).map_err(|why| format!("{why}: {line}"))?;
    }
    reader.end_of_family()?;
    Ok(reader.families)
}

#[derive(Default)]
struct Reader {
    families: BTreeMap<String, String>,
    helped: Option<String>,
    current: Option<(String, String)>,
    series: BTreeSet<(String, Labels)>,
    /// The buckets of the current histogram, by labels without `le`; `counts` has the histogram's
    /// counts.
    buckets: BTreeMap<Labels, Vec<(f64, f64)>>,
    counts: BTreeMap<Labels, f64>,
}

fn is_name(text: &str) -> bool {
    let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_' || b == b':');
    first && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':')
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, _) = rest.split_once(' ').ok_or("a HELP without text")?;
            self.end_of_family()?;
            if !is_name(name) || self.families.contains_key(name) {
                return Err("no name, or a family that was there".into());
            }
            self.helped = Some(name.into());
            return Ok(());
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or("a TYPE without a kind")?;
            if self.helped.take().as_deref() != Some(name) {
                return Err("a TYPE that is not behind its HELP".into());
            }
            if !["counter", "gauge", "histogram"].contains(&kind) {
                return Err("an unknown kind".into());
            }
            self.families.insert(name.into(), kind.into());
            self.current = Some((name.into(), kind.into()));
            return Ok(());
        }
        if line.starts_with('#') {
            return Err("a comment that is neither HELP nor TYPE".into());
        }
        self.sample(line)
    }

    fn sample(&mut self, line: &str) -> Result<(), String> {
        let end = line.find(['{', ' ']).ok_or("no value")?;
        let (name, rest) = line.split_at(end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None => (Labels::new(), rest),
        };
        let value = rest.strip_prefix(' ').ok_or("no space before the value")?;
        let value = number(value).ok_or("no number")?;
        let (family, kind) = self.current.clone().ok_or("a sample without a family")?;
        let part = name.strip_prefix(&family).ok_or("a sample of another family")?;
        if !self.series.insert((name.into(), labels.clone())) {
            return Err("the same series twice".into());
        }
        if kind != "gauge" && (value < 0.0 || value.is_nan()) {
            return Err("a counter below 0".into());
        }
        let mut of = labels;
        match (kind.as_str(), part) {
            ("counter" | "gauge", "") | ("histogram", "_sum") => {}
            ("histogram", "_bucket") => {
                let bound = of.remove("le").as_deref().and_then(number).ok_or("a bucket without a bound")?;
                self.buckets.entry(of).or_default().push((bound, value));
            }
            ("histogram", "_count") => {
                self.counts.insert(of, value);
            }
            _ => return Err("no sample of such a family".into()),
        }
        Ok(())
    }

    fn end_of_family(&mut self) -> Result<(), String> {
        if self.helped.is_some() {
            return Err("a HELP without a TYPE".into());
        }
        let Some((name, kind)) = self.current.take() else { return Ok(()) };
        if !self.series.iter().any(|(series, _)| series.starts_with(&name)) {
            return Err(format!("{name} has no sample"));
        }
        let (buckets, counts) = (std::mem::take(&mut self.buckets), std::mem::take(&mut self.counts));
        if kind == "histogram" && buckets.keys().ne(counts.keys()) {
            return Err(format!("{name}: buckets and counts are not of the same series"));
        }
        for (labels, all) in buckets {
            let grows = all.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
            let (bound, last) = all[all.len() - 1];
            if !grows || bound != f64::INFINITY || counts.get(&labels) != Some(&last) {
                return Err(format!("{name}{labels:?}: buckets are wrong: {all:?}"));
            }
        }
        Ok(())
    }
}

/// Parses a value in a syntax that Go's parser accepts; it accepts only the syntax that we write.
fn number(text: &str) -> Option<f64> {
    let legal = text.bytes().all(|b| b.is_ascii_digit() || b"+-.e".contains(&b));
    match text {
        "+Inf" => Some(f64::INFINITY),
        _ if legal => text.parse().ok(),
        _ => None,
    }
}

/// Parses labels up to the closing brace; returns also the rest of the line.
fn labels(text: &str) -> Result<(Labels, &str), String> {
    let (mut labels, mut rest) = (Labels::new(), text);
    loop {
        let (name, after) = rest.split_once("=\"").ok_or("no label")?;
        let (value, after) = value(after)?;
        if !is_name(name) || name.contains(':') || labels.insert(name.into(), value).is_some() {
            return Err(format!("label {name:?}: no name, or twice"));
        }
        match after.split_at_checked(1) {
            Some((",", after)) => rest = after,
            Some(("}", after)) => return Ok((labels, after)),
            _ => return Err("labels without an end".into()),
        }
    }
}

/// Parses a label's value up to the quote, unescaped; returns also the rest of the line.
fn value(text: &str) -> Result<(String, &str), String> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => value.push(match chars.next() {
                Some((_, 'n')) => '\n',
                Some((_, c @ ('\\' | '"'))) => c,
                _ => return Err("an unknown escape".into()),
            }),
            c => value.push(c),
        }
    }
    Err("a value without an end".into())
}

#[test]
fn what_is_wrong_is_refused() {
    let head = "# HELP a_total A.\n# TYPE a_total counter\n";
    let histogram = "# HELP h H.\n# TYPE h histogram\n";
    let good = format!(
        "{head}a_total{{x=\"1\"}} 1\na_total{{x=\"a\\\\\\\"\\n\"}} 2.5e3\n\
         {histogram}h_bucket{{le=\"0.1\"}} 1\nh_bucket{{le=\"+Inf\"}} 2\nh_sum 0.3\nh_count 2\n"
    );
    assert_eq!(check(&good).unwrap().len(), 2);
    for (wrong, why) in [
        (format!("{head}a_total{{x=\"1\",y=\"2\"}} 1\na_total{{y=\"2\",x=\"1\"}} 1\n"), "twice"),
        (format!("{head}a_total 1\n{head}a_total{{x=\"1\"}} 1\n"), "a family that was there"),
        (format!("{head}b_total 1\n"), "another family"),
        (format!("{head}a_total -1\n"), "below 0"),
        (format!("{head}a_total one\n"), "no number"),
        (format!("{head}a_total{{x=\"1\"}}1\n"), "no space"),
        (format!("{head}a_total{{x=\"\\q\"}} 1\n"), "escape"),
        (format!("{head}a_total{{x=\"1\" 1\n"), "without an end"),
        (format!("{head}a_total{{x=\"1\",x=\"2\"}} 1\n"), "twice"),
        (format!("{head}a_total 1"), "no end"),
        (head.to_string(), "no sample"),
        ("a_total 1\n".into(), "without a family"),
        ("# TYPE a_total counter\na_total 1\n".into(), "not behind its HELP"),
        (
            format!("{histogram}h_bucket{{le=\"0.1\"}} 2\nh_bucket{{le=\"+Inf\"}} 1\nh_sum 0\nh_count 1\n"),
            "buckets are wrong",
        ),
        (format!("{histogram}h_bucket{{le=\"0.1\"}} 1\nh_sum 0\nh_count 1\n"), "buckets are wrong"),
        (format!("{histogram}h_bucket{{le=\"+Inf\"}} 1\nh_sum 0\nh_count 2\n"), "buckets are wrong"),
        (format!("{histogram}h_bucket{{le=\"+Inf\"}} 1\nh_sum 0\n"), "not of the same series"),
    ] {
        let said = check(&wrong).unwrap_err();
        assert!(said.contains(why), "{wrong}\n{said}");
    }
}
