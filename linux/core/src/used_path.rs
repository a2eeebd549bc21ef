//! The path that a live front's frames take, and why: 31 characters, for `ethtool -i`.
//!
//! ```text
//!   staging+gref-mapping: path=auto   the back has all that was asked for
//!   copy: staging absent              it does not offer that
//!   copy: staging refused             it does, and did not take what was shared for it
//!   tx staging: rx refused            so in one direction
//!   staging: no memory                it could be more
//! ```
//! No pair is cut: a `const` below tries all that can occur. What a back may do: choose among these
//! words.

use crate::front::Settings;
use crate::log::Line;
use core::fmt::Write;
use pregrant::net::front::{FrontVif, NotOffered};
use pregrant::net::path::PathName;
use pregrant::platform::Platform;

/// Bytes, with the 0 behind them: C's `ETHTOOL_FWVERS_LEN`.
pub const ROOM: usize = 32;

/// What a front has shared, while its queues are not lent.
#[derive(Clone, Copy, Default)]
pub struct Shared {
    /// The directions with staging, TX and RX.
    staged: [bool; 2],
    has_pages: bool,
}

impl Shared {
    /// By a live front.
    pub fn by<P: Platform>(vif: &FrontVif<P>) -> Self {
        vif.queue(0).map_or(Self::default(), |q| {
            let (tx, rx) = q.staging_lens();
            Self { staged: [tx.is_some(), rx.is_some()], has_pages: q.pages() != [0; 2] }
        })
    }
}

/// What decides the words.
#[derive(Clone, Copy)]
pub struct Seen {
    /// None: `auto`.
    pub asked: Option<PathName>,
    /// TX and RX.
    pub staged: [bool; 2],
    /// Ordinary pages, of which the back is asked to map some, or has.
    pub has_pages: bool,
    pub announces: bool,
    pub maps: bool,
    pub persists: bool,
    pub refused: Option<PathName>,
    pub is_short: bool,
    pub absent: Option<Lack>,
}

/// What the back does not offer.
#[derive(Clone, Copy)]
pub enum Lack {
    /// Staging buffers of that length.
    DataLen,
    Path(PathName),
}

impl Lack {
    const fn name(self) -> &'static str {
        match self {
            Self::DataLen => "data_len",
            Self::Path(path) => short(path),
        }
    }
}

/// As a reason.
const fn short(path: PathName) -> &'static str {
    if matches!(path, PathName::GrefMapping) { "gref" } else { path.name() }
}

impl Seen {
    fn of<P: Platform>(vif: &FrontVif<P>, shared: Shared, asked: &str) -> Self {
        let lacks = vif.not_offered();
        let refused = |lack: &NotOffered| match lack {
            NotOffered::Refused(path) => Some(*path),
            _ => None,
        };
        let absent = |lack: &NotOffered| match lack {
            NotOffered::DataLen { offered, .. } if !offered.is_empty() => Some(Lack::DataLen),
            NotOffered::DataLen { .. } => Some(Lack::Path(PathName::Staging)),
            NotOffered::Path(path) => Some(Lack::Path(*path)),
            _ => None,
        };
        Self {
            asked: asked.parse().ok(),
            staged: shared.staged,
            has_pages: shared.has_pages,
            announces: vif.is_announcing(),
            maps: vif.gref_pages(0) > 0,
            persists: vif.persists(),
            refused: lacks.iter().find_map(refused),
            is_short: vif.shortage().is_some(),
            absent: lacks.iter().find_map(absent),
        }
    }

    const fn path(&self) -> &'static str {
        let [subject, verb] = self.why();
        match (self.staged, self.maps) {
            ([true, true], true) if subject.len() + verb.len() <= "path=auto".len() => "staging+gref-mapping",
            // So short that there is room for a reason.
            ([true, true], true) => "staging+gref",
            ([true, true], false) => "staging",
            ([true, false], true) => "tx staging+gref",
            ([true, false], false) => "tx staging",
            ([false, true], true) => "rx staging+gref",
            ([false, true], false) => "rx staging",
            ([false, false], true) => "gref-mapping",
            ([false, false], false) if self.persists => "persistent",
            ([false, false], false) => "copy",
        }
    }

    const fn why(&self) -> [&'static str; 2] {
        // Without a shortage only a back that refuses its list leaves a direction out.
        let left_out = match self.staged {
            [true, false] => Some("rx"),
            [false, true] => Some("tx"),
            _ => None,
        };
        // It offered to, and keeps none.
        let maps_none = self.asks_to_map() && self.has_pages && !self.maps && !self.announces;
        match (self.refused, left_out, self.absent) {
            (Some(PathName::Staging), Some(direction), _) => [direction, " refused"],
            (Some(path), ..) => [short(path), " refused"],
            _ if self.is_short => ["no", " memory"],
            (None, Some(direction), _) => [direction, " refused"],
            (None, None, Some(what)) => [what.name(), " absent"],
            _ if maps_none => [short(PathName::GrefMapping), " refused"],
            _ => match self.asked {
                Some(path) => ["path=", path.name()],
                None => ["path=", "auto"],
            },
        }
    }

    const fn asks_to_map(&self) -> bool {
        matches!(self.asked, None | Some(PathName::GrefMapping))
    }

    /// Into `line`.
    pub fn say(&self, line: &mut Line) {
        let [subject, verb] = self.why();
        let _ = write!(line, "{}: {subject}{verb}", self.path());
    }

    const fn len(&self) -> usize {
        let [subject, verb] = self.why();
        self.path().len() + ": ".len() + subject.len() + verb.len()
    }

    /// Whether frames take such a path, and lack such a thing, by what was asked for.
    const fn can_occur(&self) -> bool {
        let asks_to_stage = matches!(self.asked, None | Some(PathName::Staging));
        let asks_to_persist = matches!(self.asked, Some(PathName::Persistent));
        let refused = match self.refused {
            Some(PathName::Staging) => asks_to_stage,
            Some(_) => asks_to_persist,
            None => true,
        };
        let absent = match self.absent {
            Some(Lack::DataLen | Lack::Path(PathName::Staging)) => asks_to_stage,
            Some(Lack::Path(PathName::GrefMapping)) => self.asks_to_map(),
            Some(_) => asks_to_persist,
            None => true,
        };
        let [tx, rx] = self.staged;
        (asks_to_stage || !tx && !rx)
            && (self.asks_to_map() || !self.maps)
            && (asks_to_persist || !self.persists)
            && refused
            && absent
    }

    /// One of all.
    const fn nth(n: u32) -> Self {
        Self {
            staged: [n & 1 > 0, n & 2 > 0],
            has_pages: n & 4 > 0,
            announces: n & 8 > 0,
            maps: n & 16 > 0,
            persists: n & 32 > 0,
            is_short: n & 64 > 0,
            refused: match n >> 7 & 3 {
                1 => Some(PathName::Staging),
                2 => Some(PathName::Persistent),
                _ => None,
            },
            absent: match (n >> 9) % 5 {
                1 => Some(Lack::DataLen),
                2 => Some(Lack::Path(PathName::Staging)),
                3 => Some(Lack::Path(PathName::GrefMapping)),
                4 => Some(Lack::Path(PathName::Persistent)),
                _ => None,
            },
            asked: match (n >> 9) / 5 {
                1 => Some(PathName::Staging),
                2 => Some(PathName::GrefMapping),
                3 => Some(PathName::Persistent),
                4 => Some(PathName::Copy),
                _ => None,
            },
        }
    }
}

const _: () = {
    let mut n = 0;
    while n < 25 << 9 {
        let seen = Seen::nth(n);
        assert!(!seen.can_occur() || seen.len() < ROOM, "ethtool -i would cut it");
        n += 1;
    }
};

/// Puts it there, for C.
pub fn put<P: Platform>(to: &mut [u8; ROOM], vif: &FrontVif<P>, shared: Shared, settings: &Settings) {
    let mut line = Line::default();
    // SAFETY: `pregrant_front_new`'s caller: a path is as long as its settings say.
    let asked = unsafe { core::slice::from_raw_parts(settings.path, settings.path_len) };
    Seen::of(vif, shared, core::str::from_utf8(asked).unwrap_or_default()).say(&mut line);
    *to = [0; ROOM];
    to.iter_mut().take(ROOM - 1).zip(line.text().bytes()).for_each(|(to, from)| *to = from);
}
