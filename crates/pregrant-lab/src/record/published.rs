//! Figures that others published, to stand beside ours. Other machines, other years, real Xen: they show the shape.
//!
//! docs/protocol 10 has the sources in full.

/// One published figure: frames per second, one queue unless said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// The path here whose scheme it measured.
    pub path: &'static str,
    /// `tx` or `rx`, as the guest sees it.
    pub dir: &'static str,
    /// Bytes of a frame.
    pub size_bytes: u64,
    /// Queues, each with its own virtual CPU.
    pub queues: u32,
    /// Frames per second.
    pub frames_per_s: f64,
    /// Where it is from.
    pub source: &'static str,
}

/// Guest and dom0 on one host.
const S2: &str = "staging grants RFC, 2016";
/// pktgen against netback.
const S0: &str = "persistent grants RFC, 2015";
/// The gref mappings that Xen took.
const DOC: &str = "netif-staging-grants rev. 4, 2017";

/// Disks of 15 guests.
const XBD: &str = "xbd persistent grants, 2012";

/// A source with author, place and machine.
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

const fn row(
    path: &'static str,
    dir: &'static str,
    size_bytes: u64,
    queues: u32,
    frames_per_s: f64,
    source: &'static str,
) -> Published {
    Published { path, dir, size_bytes, queues, frames_per_s, source }
}

/// A published sum of requests per second, of many guests with a disk each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedDisks {
    /// The path here whose scheme it measured.
    pub path: &'static str,
    /// Bytes of a request.
    pub size_bytes: u64,
    /// Guests.
    pub guests: u32,
    /// Requests per second, over all of them.
    pub requests_per_s: f64,
    /// Where it is from.
    pub source: &'static str,
}

/// All of them: NetBSD guests on a Linux back that mapped each page, or kept it. What part were reads is not said.
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

/// The published sum for a row of ours.
pub fn find_disks(path: &str, size_bytes: u64, guests: u32) -> Option<&'static PublishedDisks> {
    PUBLISHED_DISKS.iter().find(|p| (p.path, p.size_bytes, p.guests) == (path, size_bytes, guests))
}

/// All of them. What the papers call "grant" copies frames of up to 128 B and maps the rest on TX, and copies on RX:
/// it stands beside `copy` where only a copy is done, and beside `map` elsewhere.
pub const PUBLISHED: &[Published] = &[
    row("copy", "tx", 64, 1, 1_506_170.0, S2),
    row("copy", "tx", 64, 4, 4_988_563.0, S2),
    row("copy", "tx", 256, 1, 1_295_001.0, S2),
    row("copy", "tx", 256, 4, 4_249_211.0, S2),
    row("map", "tx", 260, 1, 577_782.0, S2),
    row("map", "tx", 260, 4, 1_218_273.0, S2),
    row("copy", "rx", 64, 1, 1_549_630.0, S2),
    row("copy", "rx", 64, 4, 2_870_947.0, S2),
    row("staging", "tx", 64, 1, 3_759_012.0, S2),
    row("staging", "tx", 64, 4, 12_416_436.0, S2),
    row("staging", "tx", 256, 1, 3_248_392.0, S2),
    row("staging", "tx", 256, 4, 11_165_355.0, S2),
    row("staging", "tx", 260, 1, 588_428.0, S2),
    row("staging", "tx", 260, 4, 1_668_044.0, S2),
    // Dropped in the guest's stack, as the row of `copy` above. Dropped by XDP it was 9.47 and 33.0 M.
    row("staging", "rx", 64, 1, 3_285_362.0, S2),
    row("staging", "rx", 64, 4, 11_761_847.0, S2),
    row("map", "tx", 1496, 1, 518_000.0, S0),
    row("map", "tx", 65535, 1, 66_400.0, S0),
    row("copy", "rx", 1496, 1, 1_030_000.0, S0),
    row("copy", "rx", 65535, 1, 52_500.0, S0),
    row("persistent", "tx", 64, 1, 1_820_000.0, S0),
    row("persistent", "tx", 1496, 1, 1_480_000.0, S0),
    row("persistent", "tx", 65535, 1, 205_100.0, S0),
    row("persistent", "rx", 64, 1, 2_780_000.0, S0),
    row("persistent", "rx", 1496, 1, 1_660_000.0, S0),
    row("persistent", "rx", 65535, 1, 97_800.0, S0),
    row("gref-mapping", "tx", 64, 1, 2_490_000.0, DOC),
    row("gref-mapping", "rx", 64, 1, 2_960_000.0, DOC),
    row("gref-mapping", "tx", 64, 2, 4_740_000.0, DOC),
    row("gref-mapping", "rx", 64, 2, 5_070_000.0, DOC),
    row("gref-mapping", "tx", 64, 4, 8_800_000.0, DOC),
    row("gref-mapping", "rx", 64, 4, 9_920_000.0, DOC),
];

/// Sizes so close that their figures may stand beside each other: an Ethernet frame is given as 1496, 1500 or 1514.
fn alike(a: u64, b: u64) -> bool {
    a == b || (1496..=1514).contains(&a) && (1496..=1514).contains(&b)
}

/// The published figure for a row of ours.
pub fn find(path: &str, dir: &str, size_bytes: u64, queues: u32) -> Option<&'static Published> {
    PUBLISHED
        .iter()
        .find(|p| p.path == path && p.dir == dir && alike(p.size_bytes, size_bytes) && p.queues == queues)
}

/// Frames per second that fill an Ethernet line of `gbit_per_s` with frames of `size_bytes`. As line rates are quoted:
/// a size counts the FCS, and preamble and gap add 20 bytes.
pub fn line_rate(gbit_per_s: f64, size_bytes: u64) -> f64 {
    gbit_per_s * 1e9 / ((size_bytes as f64 + 20.0) * 8.0)
}

#[cfg(test)]
mod tests {
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
            let first = find(a.path, a.dir, a.size_bytes, a.queues);
            assert_eq!(first, Some(&PUBLISHED[i]));
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
    fn line_rates_are_the_quoted_ones() {
        let quoted = [(10.0, 64, 14.88), (40.0, 64, 59.52), (100.0, 128, 84.46), (40.0, 256, 18.11)];
        for (gbit, size, millions) in quoted {
            assert!((line_rate(gbit, size) / 1e6 - millions).abs() < 0.006, "{gbit} Gbit/s at {size} B");
        }
        assert!((line_rate(100.0, 1500) / 1e6 - 8.22).abs() < 0.01);
    }
}
