//! The page: sections that have something to show, in one order, within one frame.
//!
//! It is HTML that is well-formed XML too. It has no script and names no other resource. Every text
//! in it is escaped.

use super::digest::{Digest, Row};
use super::facts::Facts;
use super::plot::{folded, numbers};
use super::quantity::{distinct, duration, si, some};
use super::{costs, disks, rates, story, style, timeline, waits, words};
use crate::columns::Columns;
use crate::record::{Pause, Record};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use pregrant_cli::table::{Table, figure};

/// Formats the page of some records, whose texts must be [`printable`].
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
                footer { p { "The measurements behind this page are beside it: records.jsonl, one JSON object a line." } }
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

/// Formats the warnings that the figures are less reliable than usual.
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
                @if let Some(pause) = record.pause() {
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
            (folded(&restart_figures(d), "the restart"))
        }
    })
}

fn restart_figures(d: &Digest) -> Table {
    let pauses: Vec<(&Record, &Pause)> = d.restarts.iter().filter_map(|r| Some((*r, r.pause()?))).collect();
    Columns::of(&pauses)
        .left("path", |(r, _)| &r.path)
        .right("silence ns", |(_, p)| p.silence_ns)
        .right("one guest ns", |(_, p)| p.longest_gap_ns)
        .right("start ns", |(_, p)| p.start_ns)
        .right("attach ns", |(_, p)| p.attach_ns)
        .right("bytes before", |(_, p)| p.bytes_before)
        .right("frames twice", |(_, p)| p.duplicated)
        .right("frames lost", |(_, p)| p.lost)
        .right("step ns", |(_, p)| p.bucket_ns)
        .right("kill in step", |(_, p)| p.kill_bucket)
        .left("frames in each step", |(_, p)| {
            p.frames.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
        })
        .all()
}

/// Formats a table of the measurements that no other section shows.
fn others(d: &Digest) -> Option<Markup> {
    let table = Columns::of(&d.others)
        .left("bench", |row| &row.first().bench)
        .left("path", |row| &row.name)
        .left("dir", |row| &row.first().dir)
        .right("size B", |row| row.first().size_bytes)
        .left("mode", |row| &row.first().mode)
        .right("frames/s", |row| si(row.rate.median))
        .right("least", |row| si(row.rate.min))
        .right("most", |row| si(row.rate.max))
        .right("Gbit/s", |row| figure(row.bits() / 1e9))
        .right("lost", |row| row.sum(|r| r.lost))
        .all();
    (!d.others.is_empty()).then(|| numbers(&table, "Medians and ranges of the repeats"))
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
            (numbers(&ceiling(d), "Medians and ranges of the repeats"))
        }
    }
}

/// Describes how close two paths come to their upper bounds.
fn shares(d: &Digest) -> Vec<String> {
    let share = |row: Option<&Row>, limit: Option<&Row>, what: &str| {
        let (row, limit) = (row?, limit?);
        let share = row.part_of(limit)?.middle(1.0);
        Some(format!("At 64 B from the guest {} reaches {share} of {what}.", row.name))
    };
    let staging = share(d.bound("staging"), d.lines(), "the cache lines that can be handed over");
    staging.into_iter().chain(share(d.bound("copy"), d.remote(), "the bare process_vm_readv")).collect()
}

fn ceiling(d: &Digest) -> Table {
    let m = |v: f64| figure(v / 1e6);
    Columns::of(&d.limit)
        .left("what", |row| row.first().ceiling())
        .right("size B", |row| row.first().size_bytes)
        .right("M/s", |row| m(row.rate.median))
        .right("least", |row| m(row.rate.min))
        .right("most", |row| m(row.rate.max))
        .right("ns each", |row| figure(1e9 / row.rate.median))
        .right("Gbit/s", |row| figure(row.bits() / 1e9))
        .all()
}

fn method(d: &Digest, facts: &Facts) -> Markup {
    let paths = distinct(d.net.iter().chain(&d.latency).map(|row| &*row.first().path));
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
            pre { code { "pregrant-lab demo --report DIR\npregrant-lab bench net --report DIR" } }
        }
        p { "From a checkout of the source, " code { "cargo demo --report DIR" } " builds the program and runs it. It needs Linux with two cores, no root and no Xen; nothing else should run meanwhile." }
    }
}

/// Describes how the rows were measured, from their records.
fn settings(rows: &[Row]) -> Option<String> {
    let all = || rows.iter().flat_map(|row| row.iter());
    let list = |field: fn(&Record) -> String| distinct(all().map(field)).join(" or ");
    let repeats = rows.iter().map(|row| row.records.0.len()).max()?;
    let seconds = all().map(|r| r.seconds).fold(0.0, f64::max);
    Some(format!(
        "{} of {} s at most; {} mode; queues: {}; bursts of at most {} frames.",
        some(repeats as u64, "repeat"),
        figure(seconds),
        list(|r| r.mode.clone()),
        list(|r| r.queues.to_string()),
        list(|r| r.burst.to_string()),
    ))
}

/// Removes characters that no page can contain from the records, which may come from any file.
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
