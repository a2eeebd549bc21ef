//! Figures that others published, which are shown beside ours. They come from other machines, other
//! years and real Xen, so that only their relations can be compared.
//!
//! docs/protocol 10 has the sources in full.

use super::Record;
use pregrant_cli::table::figure;

/// Where the frames of a published figure were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Frames that the guest sent were counted when domain 0 received them.
    Back,
    /// Frames for the guest were counted when its network stack received and dropped them.
    Stack,
    /// Frames for the guest were counted when an XDP program dropped them before any stack.
    Xdp,
}

/// The footnote for figures that are marked with `*`.
pub const THROUGH_STACK: &str = "* In the published figure a Linux guest's network stack took the frames, and dropped them. The guests of these \
    rows have no stack: they copy a frame, and read its number. `pregrant-lab bench hook` has rows with a stack.";

/// A published rate of frames per second, with one queue unless `queues` says more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// The path of ours that works as the measured scheme does.
    pub path: &'static str,
    /// `tx` or `rx`, as the guest sees it.
    pub dir: &'static str,
    /// Length of a frame in bytes.
    pub size_bytes: u64,
    /// Number of queues, each with its own virtual CPU.
    pub queues: u32,
    /// Frames per second.
    pub frames_per_s: f64,
    pub end: End,
    pub source: &'static str,
}

/// A source whose guest and dom0 ran on one host.
const S2: &str = "staging grants RFC, 2016";
/// A source that measured pktgen against netback.
const S0: &str = "persistent grants RFC, 2015";
/// A source: the document of the gref mappings that Xen accepted.
const DOC: &str = "netif-staging-grants rev. 4, 2017";

/// A source that measured the disks of 15 guests.
const XBD: &str = "xbd persistent grants, 2012";

/// Describes a source with its author, place and machine.
pub fn in_full(source: &str) -> Option<&'static str> {
    match source {
        S2 => Some(
            "J. Martins, [RFC] netif: staging grants for requests, xen-devel, December 2016; guest and domain 0 on one \
             host, hardware not stated, staging with data length 256",
        ),
        S0 => Some(
            "J. Martins, [RFC PATCH 00/13] Persistent grant maps for xen net drivers, xen-devel, 2015; pktgen, Xen 4.5, \
             Xeon E5-1650 v2",
        ),
        DOC => Some(
            "Xen, docs/misc/netif-staging-grants.pandoc, 2017; gref mappings, Linux 4.11 guest, Xeon E5-2630 v4, \
             100 Gbit/s",
        ),
        XBD => Some(
            "R. Pau Monne, [PATCH] xen: add persistent grants to xbd_xenbus, port-xen and xen-devel, November 2012; fio with 4 KiB on \
             FFSv2 in 15 NetBSD guests, a RAM disk of 1 GB in a Linux domain 0, hardware not stated",
        ),
        _ => None,
    }
}

const fn tx(
    path: &'static str,
    size_bytes: u64,
    queues: u32,
    frames_per_s: f64,
    source: &'static str,
) -> Published {
    Published { path, dir: "tx", size_bytes, queues, frames_per_s, end: End::Back, source }
}

/// Creates a figure for frames that a Linux guest's stack received.
const fn rx(
    path: &'static str,
    size_bytes: u64,
    queues: u32,
    frames_per_s: f64,
    source: &'static str,
) -> Published {
    Published { path, dir: "rx", size_bytes, queues, frames_per_s, end: End::Stack, source }
}

/// Throughputs of equal guests in Mbit/s, for our placement that does the same as netback did (W.
/// Liu, xen-netback: switch to NAPI + kthread 1:1 model, xen-devel, 2013).
const SHARES: &[(&str, [f64; 4])] =
    &[("fixed", [1899.14, 2280.43, 1963.33, 1893.47]), ("own", [2027.89, 2025.95, 2018.57, 2016.23])];

/// Returns the published difference between the fastest and the slowest of this number of guests,
/// in per cent of their mean.
pub fn find_width(place: &str, guests: u16) -> Option<f64> {
    let (_, shares) =
        SHARES.iter().find(|(of, shares)| *of == place && shares.len() == usize::from(guests))?;
    let (least, most) = shares.iter().fold((f64::MAX, f64::MIN), |(a, b), s| (a.min(*s), b.max(*s)));
    Some((most - least) / shares.iter().sum::<f64>() * shares.len() as f64 * 100.0)
}

/// A published sum of requests per second, of many guests with a disk each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedDisks {
    /// The path of ours that works as the measured scheme does.
    pub path: &'static str,
    /// Length of a request in bytes.
    pub size_bytes: u64,
    pub guests: u32,
    /// Requests per second, of all guests together.
    pub requests_per_s: f64,
    pub source: &'static str,
}

/// The published figures: NetBSD guests on a Linux back that mapped each page, or kept it mapped.
/// The share of reads is not stated.
pub const PUBLISHED_DISKS: &[PublishedDisks] = &[
    PublishedDisks { path: "map", size_bytes: 4096, guests: 15, requests_per_s: 336_718.0, source: XBD },
    PublishedDisks {
        path: "persistent",
        size_bytes: 4096,
        guests: 15,
        requests_per_s: 686_010.0,
        source: XBD,
    },
];

/// Returns the published figure for a row of ours: the sum over all guests.
pub fn find_disks(path: &str, size_bytes: u64, guests: u32) -> Option<&'static PublishedDisks> {
    PUBLISHED_DISKS.iter().find(|p| (p.path, p.size_bytes, p.guests) == (path, size_bytes, guests))
}

/// All published figures. "Grant" in the papers copies frames of up to 128 B and maps the rest on
/// TX, and copies on RX: it is compared with `copy` where it only copies, and with `map` elsewhere.
pub const PUBLISHED: &[Published] = &[
    tx("copy", 64, 1, 1_506_170.0, S2),
    tx("copy", 64, 4, 4_988_563.0, S2),
    tx("copy", 256, 1, 1_295_001.0, S2),
    tx("copy", 256, 4, 4_249_211.0, S2),
    tx("map", 260, 1, 577_782.0, S2),
    tx("map", 260, 4, 1_218_273.0, S2),
    rx("copy", 64, 1, 1_549_630.0, S2),
    rx("copy", 64, 4, 2_870_947.0, S2),
    tx("staging", 64, 1, 3_759_012.0, S2),
    tx("staging", 64, 4, 12_416_436.0, S2),
    tx("staging", 256, 1, 3_248_392.0, S2),
    tx("staging", 256, 4, 11_165_355.0, S2),
    tx("staging", 260, 1, 588_428.0, S2),
    tx("staging", 260, 4, 1_668_044.0, S2),
    rx("staging", 64, 1, 3_285_362.0, S2),
    rx("staging", 64, 4, 11_761_847.0, S2),
    Published { end: End::Xdp, ..rx("staging", 64, 1, 9_466_591.0, S2) },
    Published { end: End::Xdp, ..rx("staging", 64, 4, 33_006_157.0, S2) },
    tx("map", 1496, 1, 518_000.0, S0),
    tx("map", 65535, 1, 66_400.0, S0),
    rx("copy", 1496, 1, 1_030_000.0, S0),
    rx("copy", 65535, 1, 52_500.0, S0),
    tx("persistent", 64, 1, 1_820_000.0, S0),
    tx("persistent", 1496, 1, 1_480_000.0, S0),
    tx("persistent", 65535, 1, 205_100.0, S0),
    rx("persistent", 64, 1, 2_780_000.0, S0),
    rx("persistent", 1496, 1, 1_660_000.0, S0),
    rx("persistent", 65535, 1, 97_800.0, S0),
    tx("gref-mapping", 64, 1, 2_490_000.0, DOC),
    rx("gref-mapping", 64, 1, 2_960_000.0, DOC),
    tx("gref-mapping", 64, 2, 4_740_000.0, DOC),
    rx("gref-mapping", 64, 2, 5_070_000.0, DOC),
    tx("gref-mapping", 64, 4, 8_800_000.0, DOC),
    rx("gref-mapping", 64, 4, 9_920_000.0, DOC),
];

/// Returns true if two sizes are so close that their figures can be compared: an Ethernet frame is
/// given as 1496, 1500 or 1514.
fn alike(a: u64, b: u64) -> bool {
    a == b || (1496..=1514).contains(&a) && (1496..=1514).contains(&b)
}

/// Returns the published figure for a row of ours. For frames to the guest it is that of frames
/// that the guest's stack received.
pub fn find(path: &str, dir: &str, size_bytes: u64, queues: u32) -> Option<&'static Published> {
    find_by(path, dir, size_bytes, queues, |end| end != End::Xdp)
}

/// Returns the published figure as [`find`] does, but for frames that a program in the guest's
/// driver (XDP) dropped.
pub fn find_by_xdp(path: &str, size_bytes: u64, queues: u32) -> Option<&'static Published> {
    find_by(path, "rx", size_bytes, queues, |end| end == End::Xdp)
}

fn find_by(
    path: &str,
    dir: &str,
    size_bytes: u64,
    queues: u32,
    wanted: fn(End) -> bool,
) -> Option<&'static Published> {
    let is_alike = |p: &&Published| {
        (p.path, p.dir, p.queues) == (path, dir, queues) && alike(p.size_bytes, size_bytes) && wanted(p.end)
    };
    PUBLISHED.iter().find(is_alike)
}

/// True if a network stack received the frames of the published figure, and no stack received ours.
pub fn is_through_stack(r: &Record) -> bool {
    let like = ["stack", "hook"];
    r.published.is_some()
        && r.dir == "rx"
        && !r.net().and_then(|net| net.rx.as_deref()).is_some_and(|way| like.contains(&way))
}

/// Formats the published figure for a record, in millions. It is marked if [a stack](THROUGH_STACK)
/// received its frames.
pub fn cell(r: &Record) -> String {
    let mark = if is_through_stack(r) { "*" } else { "" };
    r.published.map_or("-".into(), |p| figure(p / 1e6) + mark)
}

/// Returns the frames per second that fill an Ethernet line of `gbit_per_s` with frames of
/// `size_bytes`. As in the usual line rates, a size includes the FCS, and preamble and gap add 20
/// bytes.
pub fn line_rate(gbit_per_s: f64, size_bytes: u64) -> f64 {
    gbit_per_s * 1e9 / ((size_bytes as f64 + 20.0) * 8.0)
}

#[cfg(test)]
mod tests {
    use super::super::{Net, Of};
    use super::*;

    #[test]
    fn a_row_is_found_by_what_it_measures() {
        assert_eq!(find("staging", "tx", 64, 1).unwrap().frames_per_s, 3_759_012.0);
        assert_eq!(find("persistent", "rx", 1500, 1).unwrap().source, S0);
        assert!(find("staging", "tx", 64, 3).is_none() && find("foreign", "tx", 64, 1).is_none());
    }

    #[test]
    fn no_two_rows_are_for_the_same_thing() {
        for (i, a) in PUBLISHED.iter().enumerate() {
            let first = match a.end {
                End::Xdp => find_by_xdp(a.path, a.size_bytes, a.queues),
                _ => find(a.path, a.dir, a.size_bytes, a.queues),
            };
            assert_eq!(first, Some(&PUBLISHED[i]));
            assert_eq!(a.dir == "tx", a.end == End::Back);
        }
    }

    #[test]
    fn a_figure_of_a_guest_with_a_stack_is_marked_where_there_is_none() {
        let [stack, xdp] = [find("staging", "rx", 64, 1), find_by_xdp("staging", 64, 1)];
        let [stack, xdp] = [stack, xdp].map(|p| p.map(|p| p.frames_per_s));
        let of = |dir: &str, rx: Option<&str>, published| Record {
            of: Of::Net(Net { rx: rx.map(Into::into), ..Net::default() }),
            published,
            ..Record::new("net", "staging", dir, 64)
        };
        for (record, shown) in [
            (of("rx", None, stack), "3.29*"),
            (of("rx", Some("reference"), stack), "3.29*"),
            (of("rx", Some("stack"), stack), "3.29"),
            (of("rx", Some("hook"), xdp), "9.47"),
            (of("tx", None, find("staging", "tx", 64, 1).map(|p| p.frames_per_s)), "3.76"),
            (of("rx", None, None), "-"),
        ] {
            assert_eq!(cell(&record), shown);
        }
    }

    #[test]
    fn every_source_is_known_in_full() {
        assert!(PUBLISHED.iter().all(|p| in_full(p.source).is_some()));
        assert!(PUBLISHED_DISKS.iter().all(|p| in_full(p.source).is_some()));
        assert_eq!(find_disks("persistent", 4096, 15).unwrap().requests_per_s, 686_010.0);
        assert_eq!(find_disks("copy", 4096, 15), None);
        assert_eq!(in_full("hearsay"), None);
    }

    #[test]
    fn widths_are_those_of_the_published_throughputs() {
        let width = |place| find_width(place, 4).map(|width| format!("{width:.1}"));
        assert_eq!(["fixed", "own", "balanced"].map(width), [Some("19.3".into()), Some("0.6".into()), None]);
        assert_eq!(find_width("own", 32), None);
    }

    #[test]
    fn line_rates_are_the_quoted_ones() {
        let quoted = [(10.0, 64, 14.88), (40.0, 64, 59.52), (100.0, 128, 84.46), (40.0, 256, 18.11)];
        for (gbit, size, millions) in quoted {
            assert!((line_rate(gbit, size) / 1e6 - millions).abs() < 0.006, "{gbit} Gbit/s at {size} B");
        }
        assert!((line_rate(100.0, 1500) / 1e6 - 8.22).abs() < 0.01);
    }
}
