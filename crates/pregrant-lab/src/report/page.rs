//! The page: sections that have something to show, in one order, within one frame.
//!
//! It is HTML that is well-formed XML too. It has no script and names no other resource. Every text in it is escaped.

use super::digest::{Digest, Row};
use super::facts::Facts;
use super::plot::Numbers;
use super::quantity::{duration, si};
use super::{costs, disks, rates, story, style, timeline, waits, words};
use crate::record::Record;
use crate::table::{Align, figure};
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// The page of some records, whose texts are [`printable`].
pub fn page(records: &[Record], facts: &Facts) -> String {
    let facts = printable_facts(facts);
    let d = Digest::of(records);
    let sections: Vec<(&str, &str, Markup)> = [
        ("rates", "Frames a second", rates::section(&d)),
        ("costs", "What a frame costs", costs::section(&d)),
        ("disks", "Requests to a disk", disks::section(&d)),
        ("latency", "Latency", waits::section(&d)),
        ("restart", "The backend is killed", restarts(&d)),
        ("disk-restart", "The backend of a disk is killed", disks::restarts(&d)),
        ("others", "Other measurements", others(&d)),
        ("machine", "Machine and ceiling", Some(machine(&d, &facts))),
        ("method", "How it was measured", Some(method(&d, &facts))),
    ]
    .into_iter()
    .filter_map(|(id, title, content)| Some((id, title, content?)))
    .collect();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                (PreEscaped(r#"<meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>"#))
                title { "Pregrant report" }
                style { (PreEscaped(style::SHEET)) }
            }
            body {
                header {
                    p.mark { "Pregrant report" @for fact in [&facts.cpu, &facts.kernel, &facts.date].into_iter().flatten() { " · " (fact) } }
                    h1 { (headline(&d)) }
                    @for sentence in story::sentences(&d).iter().take(1) { p.lead { (sentence) } }
                    @let more: Vec<String> = story::sentences(&d).into_iter().skip(1).collect();
                    @if !more.is_empty() { p { (more.join(" ")) } }
                    (warnings(&d, &facts))
                    ul.tiles { @for tile in story::tiles(&d) { li { strong { (tile.figure) } span { (tile.of) } } } }
                }
                nav aria-label="Sections" { ul { @for (id, title, _) in &sections { li { a href={ "#" (id) } { (title) } } } } }
                main {
                    @for (id, title, content) in &sections {
                        section id=(id) { h2 { (title) } (content) }
                    }
                }
                footer { p { "The measurements behind this page lie beside it: records.jsonl, one JSON object a line." } }
            }
        }
    }
    .into_string()
}

fn headline(d: &Digest) -> &'static str {
    match (d.net.is_empty(), d.latency.is_empty(), d.limit.is_empty()) {
        (false, ..) => "Frames through a Xen interface, path against path",
        (true, false, _) => "One frame there and back",
        (true, true, _) if !d.blk.is_empty() => "Requests to a disk of a Xen guest, path against path",
        (true, true, false) => "What this machine can do",
        _ => "Measurements",
    }
}

/// What makes the figures worth less.
fn warnings(d: &Digest, facts: &Facts) -> Markup {
    html! {
        @if let Some(why) = &facts.failed {
            p.warning role="note" { strong { "The run failed: " } (why) }
        }
        @if let Some(loaded) = facts.loaded() {
            p.warning role="note" { strong { (loaded) } ", and say little of what it can do." }
        }
        @if d.lost() > 0 {
            p.warning role="note" { strong { (d.lost()) " frames were lost" } ", and no row may lose one: these figures are not to be used." }
        }
    }
}

fn restarts(d: &Digest) -> Option<Markup> {
    (!d.restarts.is_empty()).then(|| {
        html! {
            @for (i, record) in d.restarts.iter().enumerate() {
                @if let Some(pause) = &record.pause {
                    @let words = timeline::in_words(pause);
                    p { (words) }
                    @if let Some(plot) = timeline::draw(&format!("restart-{i}"), "Frames a second around the death of the backend", &words, pause) {
                        figure {
                            figcaption { "frames/s, path " (record.path) ", in steps of " (duration(pause.bucket_ns as f64)) ". Shaded: nothing reaches the guests; darker: the new backend attaches." }
                            (plot)
                        }
                    }
                }
            }
            (restart_numbers(d).folded("the restart"))
        }
    })
}

fn restart_numbers(d: &Digest) -> Numbers {
    let mut numbers = Numbers::new(&[
        ("path", Align::Left),
        ("silence ns", Align::Right),
        ("one guest ns", Align::Right),
        ("start ns", Align::Right),
        ("attach ns", Align::Right),
        ("bytes before", Align::Right),
        ("frames twice", Align::Right),
        ("frames lost", Align::Right),
        ("step ns", Align::Right),
        ("kill in step", Align::Right),
        ("frames in each step", Align::Left),
    ]);
    for record in &d.restarts {
        let Some(p) = &record.pause else { continue };
        let frames: Vec<String> = p.frames.iter().map(u64::to_string).collect();
        let mut cells = vec![record.path.clone()];
        cells.extend(
            [
                p.silence_ns,
                p.longest_gap_ns,
                p.start_ns,
                p.attach_ns,
                p.bytes_before,
                p.duplicated,
                p.lost,
                p.bucket_ns,
            ]
            .map(|n| n.to_string()),
        );
        cells.extend([p.kill_bucket.to_string(), frames.join(" ")]);
        numbers.row(cells);
    }
    numbers
}

/// A table of whatever else was measured.
fn others(d: &Digest) -> Option<Markup> {
    let mut numbers = Numbers::new(&[
        ("bench", Align::Left),
        ("path", Align::Left),
        ("dir", Align::Left),
        ("size B", Align::Right),
        ("mode", Align::Left),
        ("frames/s", Align::Right),
        ("least", Align::Right),
        ("most", Align::Right),
        ("Gbit/s", Align::Right),
        ("lost", Align::Right),
    ]);
    for row in &d.others {
        let r = row.first();
        let mut cells =
            vec![r.bench.clone(), row.name.clone(), r.dir.clone(), r.size_bytes.to_string(), r.mode.clone()];
        cells.extend([row.rate.median, row.rate.min, row.rate.max].map(si));
        cells.extend([figure(row.bits() / 1e9), row.sum(|r| r.lost).to_string()]);
        numbers.row(cells);
    }
    (!d.others.is_empty()).then(|| numbers.table("Medians and ranges of the repeats"))
}

fn machine(d: &Digest, facts: &Facts) -> Markup {
    let virtual_machine = facts.virtual_machine.map(|v| if v { "yes" } else { "no" }.to_string());
    let rows = [
        ("Processor", &facts.cpu),
        ("Cores online", &facts.cores_online),
        ("Pinned", &facts.pinned),
        ("Virtual machine", &virtual_machine),
        ("Kernel", &facts.kernel),
        ("Platform", &facts.platform),
        ("Date", &facts.date),
        ("Pregrant", &facts.version),
    ];
    html! {
        dl.facts {
            @for (name, value) in rows {
                div { dt { (name) } dd { @if let Some(value) = value { (value) } @else { span.unknown { "not recorded" } } } }
            }
        }
        @if !d.limit.is_empty() {
            h3 { "Ceiling" }
            p { "What the same cores do with no driver in the way." @for share in shares(d) { " " (share) } }
            (ceiling(d).table("Medians and ranges of the repeats"))
        }
    }
}

/// How near two paths come to what bounds them.
fn shares(d: &Digest) -> Vec<String> {
    let of = |path: &str| {
        d.net.iter().find(|row| {
            let r = row.first();
            (&*r.path, &*r.dir, r.size_bytes) == (path, "tx", 64)
        })
    };
    let share = |row: Option<&Row>, limit: Option<&Row>, what: &str| {
        let (row, limit) = (row?, limit?);
        let share = figure(row.rate.median / limit.rate.median);
        Some(format!("At 64 B from the guest {} reaches {share} of {what}.", row.name))
    };
    let staging = share(of("staging"), d.lines(), "the cache lines that can be handed over");
    staging.into_iter().chain(share(of("copy"), d.remote(), "the bare process_vm_readv")).collect()
}

fn ceiling(d: &Digest) -> Numbers {
    let mut numbers = Numbers::new(&[
        ("what", Align::Left),
        ("size B", Align::Right),
        ("M/s", Align::Right),
        ("least", Align::Right),
        ("most", Align::Right),
        ("ns each", Align::Right),
        ("Gbit/s", Align::Right),
    ]);
    for row in &d.limit {
        let r = row.first();
        let mut cells = vec![r.ceiling(), r.size_bytes.to_string()];
        cells.extend([row.rate.median, row.rate.min, row.rate.max].map(|v| figure(v / 1e6)));
        cells.extend([figure(1e9 / row.rate.median), figure(row.bits() / 1e9)]);
        numbers.row(cells);
    }
    numbers
}

fn method(d: &Digest, facts: &Facts) -> Markup {
    let mut paths: Vec<&str> = Vec::new();
    for row in d.net.iter().chain(&d.latency) {
        if !paths.contains(&&*row.first().path) {
            paths.push(&row.first().path);
        }
    }
    let explained: Vec<(&str, &str)> = paths.into_iter().filter_map(|p| Some((p, words::path(p)?))).collect();
    html! {
        @if let Some(settings) = settings(&d.net) { p { (settings) " " (words::NET_METHOD) } }
        @if !d.latency.is_empty() { p { (words::LATENCY_METHOD) } }
        @if !d.limit.is_empty() { p { (words::LIMIT_METHOD) } }
        @if !d.restarts.is_empty() { p { (words::RESTART_METHOD) } }
        @if !d.disk_restarts.is_empty() { p { (words::DISK_RESTART_METHOD) } }
        p { (words::CAVEAT) }
        @if !explained.is_empty() {
            h3 { "The paths" }
            dl.paths { @for (name, text) in explained { div { dt { (name) } dd { (text) } } } }
        }
        h3 { "Do it again" }
        @if let Some(command) = &facts.command {
            p { "This page was made by:" }
            pre { code { (command) } }
        } @else {
            p { "The command was not recorded. These make pages like this one:" }
            pre { code { "pregrant demo --report DIR\npregrant bench net --report DIR" } }
        }
        p { "From a checkout of the source, " code { "cargo run --release -- demo --report DIR" } " builds the program and runs it. It needs Linux with two cores, no root and no Xen; nothing else should run meanwhile." }
    }
}

/// How the rows were measured, from their records.
fn settings(rows: &[Row]) -> Option<String> {
    let all = || rows.iter().flat_map(|row| &row.records);
    let list = |field: &dyn Fn(&Record) -> String| {
        let mut values: Vec<String> = Vec::new();
        for value in all().map(|r| field(r)) {
            if !values.contains(&value) {
                values.push(value);
            }
        }
        values.join(" or ")
    };
    let repeats = rows.iter().map(|row| row.records.len()).max()?;
    let seconds = all().map(|r| r.seconds).fold(0.0, f64::max);
    Some(format!(
        "{repeats} repeat{} of {} s at most; {} mode; queues: {}; bursts of at most {} frames.",
        if repeats == 1 { "" } else { "s" },
        figure(seconds),
        list(&|r| r.mode.clone()),
        list(&|r| r.queues.to_string()),
        list(&|r| r.burst.to_string()),
    ))
}

/// Records without characters that no page can hold: they may come out of any file.
pub fn printable(records: &[Record]) -> Vec<Record> {
    let mut records = records.to_vec();
    for r in &mut records {
        for text in [&mut r.bench, &mut r.path, &mut r.dir, &mut r.mode, &mut r.platform] {
            *text = shown(text);
        }
    }
    records
}

pub fn printable_facts(facts: &Facts) -> Facts {
    let mut facts = facts.clone();
    let Facts {
        cpu,
        cores_online,
        pinned,
        kernel,
        virtual_machine: _,
        platform,
        date,
        version,
        command,
        others: _,
        failed,
    } = &mut facts;
    for text in
        [cpu, cores_online, pinned, kernel, platform, date, version, command, failed].into_iter().flatten()
    {
        *text = shown(text);
    }
    facts
}

fn shown(text: &str) -> String {
    let one = |c: char| match c {
        '\n' | '\t' => ' ',
        '\u{fffe}' | '\u{ffff}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(one).collect()
}
