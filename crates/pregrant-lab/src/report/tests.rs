//! Tests rules for every page, on the page as a parser reads it.

use super::digest::{Digest, LINES};
use super::facts::Facts;
use super::{markdown, page, picture};
use crate::record::published;
use crate::record::{DISK_RESTART, Disk, Of, Pause, Record, Restart, Took};
use pregrant_cli::table::figure;
use roxmltree::{Document, Node};
use std::collections::BTreeSet;

fn net(path: &str, dir: &str, size: u64, data_len: Option<u64>, rate: u64, repeat: u32) -> Record {
    let mut r = Record { data_len, repeat, ..Record::new("net", path, dir, size) };
    r.count(rate, 1.0);
    if path == "copy" {
        r.grant_copies = rate;
        r.published = published::find("copy", dir, size, 1).map(|p| p.frames_per_s);
    }
    r
}

fn took(latency_p50_ns: u64, latency_p99_ns: u64) -> Took {
    Took { latency_p50_ns, latency_p99_ns, ..Took::default() }
}

/// Returns records of every kind that a page can show.
fn everything() -> Vec<Record> {
    let mut records = Vec::new();
    for repeat in 0..3 {
        let more = u64::from(repeat) * 12_345;
        for (dir, size) in [("tx", 64), ("rx", 64), ("tx", 1500), ("rx", 65535)] {
            records.push(net("copy", dir, size, None, 2_456_000 + size + more, repeat));
            records.push(net("staging", dir, size, Some(256), 46_789_000 + size + 10 * more, repeat));
        }
        let mut lines = Record { of: Of::Limit(LINES), ..Record::new("limit", "lines", "tx", 64) };
        lines.count(151_000_000 + more, 1.0);
        records.push(lines);
        let mut neighbour = Record::new("neighbour", "beside a greedy guest", "tx", 64);
        neighbour.count(39_100_000 + more, 1.0);
        records.push(neighbour);
    }
    for (mode, dir) in [("poll", "tx"), ("poll", "rx"), ("event", "tx")] {
        let mut r = Record::new("latency", "staging", dir, 64);
        r.count(70_123, 0.2);
        (r.mode, r.data_len) = (mode.into(), Some(256));
        let histogram = vec![(200, 10), (281, 60_000), (437, 10_000), (98_765, 113)];
        r.took = Some(Took { latency_histogram: Some(histogram), ..took(281, 437) });
        records.push(r);
    }
    for (path, guests, rate) in [("map", 1, 400_000), ("persistent", 1, 900_000), ("persistent", 15, 800_123)]
    {
        for repeat in 0..3 {
            let mut r = Record {
                repeat,
                of: Of::Disk(Disk { guests, align: Some(4096), ..Disk::default() }),
                workers: Some(1),
                ..Record::new("blk", path, "read", 4096)
            };
            r.count(rate + 1000 * u64::from(repeat), 1.0);
            (r.depth, r.took) = (Some(32), Some(took(31_000, 52_000)));
            r.published = published::find_disks(path, 4096, guests).map(|p| p.requests_per_s);
            records.push(r);
        }
    }
    let pause = Pause {
        start_ns: 4_310_005,
        attach_ns: 2_310_001,
        silence_ns: 7_450_002,
        longest_gap_ns: 7_460_003,
        bytes_before: 31_457_283,
        duplicated: 12,
        lost: 4,
        bucket_ns: 1_000_000,
        kill_bucket: 2,
        frames: vec![417, 418, 203, 0, 0, 0, 0, 0, 0, 151, 419],
    };
    records
        .push(Record { of: Of::Restart(Restart { pause }), ..Record::new("restart", "staging", "tx", 1514) });
    let mut disk = Record::new(DISK_RESTART, "persistent", "mixed", 4096);
    disk.count(61_217, 0.4);
    disk.of = Of::Disk(Disk { guests: 1, before: Some(20_613), ..Disk::default() });
    let took = Took { latency_most_ns: Some(12_340_019), ..took(131_013, 402_017) };
    (disk.depth, disk.took) = (Some(32), Some(took));
    records.push(disk);
    records
}

fn restart() -> Record {
    everything().into_iter().find(|record| record.pause().is_some()).unwrap()
}

fn pause_of(record: &mut Record) -> &mut Pause {
    let Of::Restart(Restart { pause }) = &mut record.of else { panic!("no death") };
    pause
}

fn html(records: &[Record], facts: &Facts) -> String {
    page::page(&page::printable(records), facts)
}

/// Parses a page, which is well-formed XML after its first line.
fn parsed(html: &str) -> Document<'_> {
    let body = html.strip_prefix("<!DOCTYPE html>").expect("the doctype comes first");
    Document::parse(body).unwrap_or_else(|e| panic!("{e} in {body}"))
}

fn elements<'a>(page: &'a Document<'a>, name: &'a str) -> impl Iterator<Item = Node<'a, 'a>> {
    page.descendants().filter(move |n| n.tag_name().name() == name)
}

fn text(node: Node) -> String {
    node.descendants().filter(Node::is_text).filter_map(|n| n.text()).collect::<Vec<_>>().join("\n")
}

/// Returns the whole text that a reader sees, without the style sheet.
fn all_text(page: &Document) -> String {
    elements(page, "body").map(text).collect()
}

fn headings(page: &Document) -> Vec<String> {
    elements(page, "h2").map(text).collect()
}

#[test]
fn the_page_stands_alone() {
    let source = html(&everything(), &Facts::here());
    let page = parsed(&source);
    for name in ["script", "link", "img", "image", "iframe", "object", "embed", "use", "base", "form"] {
        assert_eq!(elements(&page, name).count(), 0, "<{name}>");
    }
    for attribute in page.descendants().flat_map(|n| n.attributes()) {
        let (name, value) = (attribute.name(), attribute.value());
        assert!(!name.starts_with("on") && name != "src" && name != "style", "{name}={value}");
        assert!(name != "href" || value.starts_with('#'), "{name}={value}");
    }
    assert!(!source.contains("://") && !source.contains("url("));
}

#[test]
fn names_within_the_page_lead_somewhere() {
    let source = html(&everything(), &Facts::default());
    let page = parsed(&source);
    let ids: Vec<&str> = page.descendants().filter_map(|n| n.attribute("id")).collect();
    let known: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(known.len(), ids.len(), "an id is there twice");
    let links = elements(&page, "a").filter_map(|n| n.attribute("href")).map(|href| &href[1..]);
    let labels =
        page.descendants().filter_map(|n| n.attribute("aria-labelledby")).flat_map(str::split_whitespace);
    for name in links.chain(labels) {
        assert!(known.contains(name), "{name}");
    }
}

/// Each drawing has a description, and its figures are also in a table.
#[test]
fn drawings_can_be_read_without_eyes() {
    let source = html(&everything(), &Facts::default());
    let page = parsed(&source);
    let drawings: Vec<Node> = elements(&page, "svg").filter(|n| n.attribute("role") == Some("img")).collect();
    assert!(drawings.len() >= 10, "{}", drawings.len());
    for drawing in drawings {
        for name in ["title", "desc"] {
            let said = drawing.children().find(|n| n.tag_name().name() == name).map(text);
            assert!(said.is_some_and(|s| !s.trim().is_empty()), "{drawing:?} has no {name}");
        }
    }
    for svg in elements(&page, "svg") {
        let reported = svg
            .ancestors()
            .any(|n| n.attribute("role") == Some("img") || n.attribute("aria-hidden").is_some());
        assert!(reported, "{svg:?} is neither described nor hidden");
    }
    for table in elements(&page, "table") {
        let rows = table.descendants().filter(|n| n.tag_name().name() == "tr").count();
        assert!(rows >= 2 && table.children().any(|n| n.tag_name().name() == "caption"), "{}", text(table));
    }
    assert!(elements(&page, "svg").all(|n| n.attribute("width").is_none_or(|w| w == "100%" || w == "16")));
}

#[test]
fn every_figure_of_every_record_is_there() {
    let records = everything();
    let source = html(&records, &Facts::default());
    let page = parsed(&source);
    let cells: Vec<String> = elements(&page, "td").map(text).collect();
    let words: BTreeSet<&str> = cells.iter().flat_map(|c| c.split_whitespace()).collect();
    let mut wanted: Vec<String> = Vec::new();
    for r in &records {
        match &*r.bench {
            "net" => wanted.extend([figure(r.frames_per_s / 1e6), r.size_bytes.to_string()]),
            "latency" => wanted.extend(["281".into(), "437".into(), "98765".into(), r.mode.clone()]),
            "limit" => wanted.push(figure(r.frames_per_s / 1e6)),
            "blk" => wanted.extend([figure(r.frames_per_s / 1e3), "32".into(), "31.0".into()]),
            "neighbour" => wanted.extend(["39.1".into(), r.bench.clone()]),
            _ => {}
        }
        if let Some(p) = r.pause() {
            wanted.extend(
                [
                    p.start_ns,
                    p.attach_ns,
                    p.silence_ns,
                    p.longest_gap_ns,
                    p.bytes_before,
                    p.duplicated,
                    p.lost,
                ]
                .map(|n| n.to_string()),
            );
            wanted.extend(p.frames.iter().map(u64::to_string));
        }
        let before = r.of.disk().and_then(|disk| disk.before);
        wanted.extend([r.longest(), before].into_iter().flatten().map(|n| n.to_string()));
        let unit = if r.bench == "blk" { 1e3 } else { 1e6 };
        wanted.extend(r.published.map(|p| figure(p / unit)));
    }
    for figure in wanted {
        assert!(words.contains(&*figure), "{figure} is in no table");
    }
    let said = all_text(&page);
    for part in [
        "19.0 times copy",
        "staging grants RFC, 2016",
        "staging grants for requests, xen-devel",
        "7.45 ms",
        "7.46 ms",
        "of a disk was killed with 32 requests in flight: none failed, and the longest took 12.3 ms",
        "killed when 20613 of them were answered",
        "persistent, 15 guests, 1 worker",
        "2.25× map",
        "xbd persistent grants, 2012",
    ] {
        assert!(said.contains(part), "{part} is missing in\n{said}");
    }
}

#[test]
fn what_was_not_measured_leaves_no_heading() {
    let all = everything();
    let only = |bench: &str| all.iter().filter(|r| r.bench == bench).cloned().collect::<Vec<_>>();
    let ends = ["Machine and ceiling", "How it was measured"];
    for (bench, own) in [
        ("net", &["Frames a second", "What a frame costs"][..]),
        ("blk", &["Requests to a disk"]),
        ("latency", &["Latency"]),
        ("restart", &["The backend is killed"]),
        (DISK_RESTART, &["The backend of a disk is killed"]),
        ("neighbour", &["Other measurements"]),
        ("limit", &[]),
        ("nothing", &[]),
    ] {
        let source = html(&only(bench), &Facts::default());
        let page = parsed(&source);
        assert_eq!(headings(&page), [own, &ends[..]].concat(), "{bench}");
        let ceiling = elements(&page, "h3").any(|n| text(n) == "Ceiling");
        assert_eq!(ceiling, bench == "limit", "{bench}");
        // A heading is followed by something that is none.
        for heading in page.descendants().filter(|n| matches!(n.tag_name().name(), "h2" | "h3" | "h4")) {
            let next = heading.next_sibling_element().map(|n| n.tag_name().name().to_string());
            let empty =
                next.as_deref().is_none_or(|n| n == "h2" || (n == "h3" && heading.tag_name().name() == "h3"));
            assert!(!empty, "{bench}: nothing below {}", text(heading));
        }
    }
    let source = html(&all, &Facts::default());
    assert_eq!(headings(&parsed(&source)).len(), 9);
}

#[test]
fn one_direction_alone_has_no_other() {
    let tx: Vec<Record> = everything().into_iter().filter(|r| r.bench == "net" && r.dir == "tx").collect();
    let source = html(&tx, &Facts::default());
    let captions: Vec<String> = elements(&parsed(&source), "figcaption").map(text).collect();
    assert!(!captions.is_empty() && captions.iter().all(|c| c.contains("from the guest")), "{captions:?}");
}

/// Records may come from any file, and the facts from any machine; their texts are shown as text.
#[test]
fn strange_texts_stay_texts() {
    let strange = "</title><script>alert(\"1\")</script>&amp;'\u{0}\u{1b}\u{ffff}";
    let mut records = everything();
    for r in &mut records {
        r.path += strange;
        r.mode += strange;
        r.platform += strange;
    }
    let mut other = records[0].clone();
    (other.bench, other.dir) = (strange.into(), strange.into());
    records.push(other);
    let some = Some(strange.to_string());
    let facts = Facts {
        cpu: some.clone(),
        cores_online: some.clone(),
        pinned: some.clone(),
        kernel: some.clone(),
        virtual_machine: Some(true),
        platform: some.clone(),
        date: some.clone(),
        version: some.clone(),
        command: some.clone(),
        others: Some(f64::MAX),
        failed: some,
    };
    let source = html(&records, &facts);
    let page = parsed(&source);
    assert_eq!(elements(&page, "script").count(), 0);
    assert!(all_text(&page).contains("</title><script>alert(\"1\")</script>&amp;'\u{fffd}"));
    let records = page::printable(&records);
    let picture = picture::rates(&Digest::of(&records)).unwrap();
    assert_eq!(
        Document::parse(&picture).unwrap().descendants().filter(|n| n.has_tag_name("script")).count(),
        0
    );
}

#[test]
fn a_loaded_machine_is_said_to_be_one() {
    for (others, said) in [(None, false), (Some(0.04), false), (Some(0.43), true)] {
        let facts = Facts { others, ..Facts::default() };
        let words = "Other programs took 43 % of this machine\u{2019}s processors meanwhile";
        let page = html(&everything(), &facts);
        let figures = markdown::markdown(&Digest::of(&everything()), &facts).unwrap();
        assert_eq!((page.contains(words), figures.contains(words)), (said, said), "{others:?}");
    }
}

#[test]
fn figures_out_of_any_file_make_a_page() {
    let mut records = everything();
    for (i, r) in records.iter_mut().enumerate() {
        let odd = [0.0, -1.0, 1e300, 1e-300][i % 4];
        (r.frames_per_s, r.bits_per_s, r.seconds) = (odd, odd, odd);
        (r.frames, r.grant_copies, r.size_bytes) =
            (u64::MAX * (i as u64 % 2), u64::MAX, [0, 1, u64::MAX][i % 3]);
        let histogram = vec![(0, u64::MAX), (u64::MAX, u64::MAX), (7, 0)];
        r.took = Some(Took { latency_histogram: Some(histogram), ..took(0, u64::MAX) });
        if let Of::Restart(Restart { pause: p }) = &mut r.of {
            (p.start_ns, p.silence_ns, p.attach_ns) = (u64::MAX, 0, u64::MAX);
            (p.bucket_ns, p.kill_bucket) = (u64::MAX, usize::MAX);
            p.frames = vec![u64::MAX; 3];
        }
    }
    let source = html(&records, &Facts::default());
    let page = parsed(&source);
    for attribute in page.descendants().flat_map(|n| n.attributes()) {
        assert!(!["NaN", "inf"].iter().any(|bad| attribute.value().contains(bad)), "{attribute:?}");
    }
    let records = page::printable(&records);
    let digest = Digest::of(&records);
    for picture in [picture::rates(&digest), picture::restart(&digest)].into_iter().flatten() {
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
    }
    assert!(markdown::markdown(&digest, &Facts::default()).is_some());
}

#[test]
fn what_spoils_the_figures_is_said_first() {
    let mut records = everything();
    let source = html(&records, &Facts::default());
    assert!(!source.contains("class=\"warning\""));
    records[0].lost = 17;
    let facts = Facts { failed: Some("the guest ended early".into()), ..Facts::default() };
    let source = html(&records, &facts);
    let warnings: Vec<String> = elements(&parsed(&source), "p")
        .filter(|n| n.attribute("class") == Some("warning"))
        .map(text)
        .collect();
    assert!(
        warnings[0].contains("the guest ended early") && warnings[1].contains("17 frames were lost"),
        "{warnings:?}"
    );
}

#[test]
fn facts_that_are_missing_are_said_to_be() {
    let unknown = |facts: &Facts| {
        let source = html(&everything(), facts);
        elements(&parsed(&source), "dd").filter(|n| text(*n) == "not recorded").count()
    };
    assert_eq!(unknown(&Facts::default()), 8);
    let facts = Facts { cpu: Some("a CPU".into()), virtual_machine: Some(false), ..Facts::default() };
    assert_eq!(unknown(&facts), 6);
}

#[test]
fn pictures_stand_alone_too() {
    let records = everything();
    let drawn = |picture: Option<String>| {
        let picture = picture.unwrap();
        let page = Document::parse(&picture).unwrap();
        assert_eq!(page.root_element().tag_name().namespace(), Some("http://www.w3.org/2000/svg"));
        // The ground is its own: it is read on pages of any colour.
        assert!(page.descendants().any(|n| n.attribute("class") == Some("page")));
        text(page.root_element())
    };
    let said = drawn(picture::rates(&Digest::of(&records)));
    for part in
        ["staging 256", "Frames of 64 bytes", "Frames of 1500 bytes", "Diamonds: published, on real Xen"]
    {
        assert!(said.contains(part), "{part} is missing in {said}");
    }
    let said = drawn(picture::restart(&Digest::of(&records)));
    for part in ["killed with SIGKILL", "7.45 ms", "4.31 ms", "2.31 ms", "4 frames were lost"] {
        assert!(said.contains(part), "{part} is missing in {said}");
    }
    let nothing = Digest::default();
    assert!(picture::rates(&nothing).is_none() && picture::restart(&nothing).is_none());
}

/// The picture of a restart shows what follows the silence, however slow the machine was.
#[test]
fn the_picture_shows_the_end_of_a_long_silence() {
    let mut record = restart();
    let pause = pause_of(&mut record);
    (pause.silence_ns, pause.kill_bucket) = (90_000_000, 1);
    pause.frames = [vec![7], vec![0; 90], vec![7; 60]].concat();
    let records = [record];
    let drawn = picture::restart(&Digest::of(&records)).unwrap();
    assert_eq!(drawn.matches("class=\"moved\"").count(), 61);
}

/// Of several restarts, the picture shows the one with the median silence, not the shortest.
#[test]
fn the_death_in_the_picture_is_the_middle_one() {
    let mut records: Vec<Record> = Vec::new();
    for silence_ns in [9_110_000, 3_330_000, 5_550_000] {
        let mut record = restart();
        pause_of(&mut record).silence_ns = silence_ns;
        records.push(record);
    }
    let shown = picture::restart(&Digest::of(&records)).unwrap();
    assert!(
        shown.contains("no frame for 5.55 ms") && !shown.contains("3.33 ms") && !shown.contains("9.11 ms")
    );
}
