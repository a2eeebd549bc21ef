//! The path that a live front's frames take, and why: 31 characters, for `ethtool -i`; the log has
//! the same words.
//!
//! ```text
//!   staging+gref: path=auto    the back has all that was asked for
//!   copy: staging absent       it does not offer that
//!   copy: data-ring refused    it does, and did not take what was shared for it
//!   tx staging: rx refused     so in one direction
//!   staging: no memory         it could be more
//! ```
//! None is cut: what is before the colon and what is behind it have their lengths. What a back may
//! do: choose among these words.

use pregrant::net::front::{FrontVif, NotOffered};
use pregrant::net::path::PathName;
use pregrant::platform::Platform;

/// Size in bytes including the terminating 0: C's `ETHTOOL_FWVERS_LEN`.
pub const ROOM: usize = 32;
/// A text with a terminating 0.
pub type Words = [u8; ROOM];
/// The longest path, and the longest reason.
const PATH: usize = 12;
const WHY: usize = ROOM - 1 - ": ".len() - PATH;

/// Texts that are checked to fit, when compiled.
macro_rules! fit {
    ($most:ident, $words:literal) => {
        const {
            assert!($words.len() <= $most, "ethtool -i would cut it");
            $words
        }
    };
}

/// The memory that a front shares with its back. It is read while no queue is handed out.
#[derive(Clone, Copy, Default)]
pub struct Shared {
    /// For TX and RX: whether the direction has staging buffers.
    pub staged: [bool; 2],
    /// For TX and RX: whether the direction has a half of a data ring.
    pub ringed: [bool; 2],
    /// True if the front has ordinary pages, which the back maps if it was asked to.
    pub has_pages: bool,
}

impl Shared {
    /// Reads the state of a live front.
    pub fn by<P: Platform>(vif: &FrontVif<P>) -> Self {
        vif.queue(0).map_or(Self::default(), |q| {
            let ((tx, rx), ring) = (q.staging_lens(), q.data_ring());
            Self {
                staged: [tx.is_some(), rx.is_some()],
                ringed: [ring.tx, ring.rx],
                has_pages: q.pages() != [0; 2],
            }
        })
    }
}

/// The name of a path that a front's owner may ask for.
pub fn asked(path: &[u8]) -> &'static [u8] {
    let known: [&[u8]; 5] = [b"copy", b"staging", b"data-ring", b"gref-mapping", b"persistent"];
    known.into_iter().find(|known| *known == path).unwrap_or(b"auto")
}

/// What determines the text.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    /// A path's name, or `auto`.
    pub asked: &'a [u8],
    pub shared: Shared,
    pub maps: bool,
    /// The back was asked to map pages and has mapped none.
    pub maps_none: bool,
    pub persists: bool,
    /// The memory that the back did not take, though it offers its path.
    pub refused: Option<&'static str>,
    pub is_short: bool,
    /// The feature that the back does not offer.
    pub absent: Option<&'static str>,
}

impl<'a> Seen<'a> {
    /// Reads the state of a live front.
    pub fn of<P: Platform>(vif: &FrontVif<P>, shared: Shared, asked: &'a [u8]) -> Self {
        let absent = |lack: &NotOffered| match lack {
            NotOffered::DataLen { offered, .. } if !offered.is_empty() => Some(fit!(WHY, "data_len absent")),
            NotOffered::DataLen { .. } => Some(fit!(WHY, "staging absent")),
            NotOffered::Path(PathName::DataRing) => Some(fit!(WHY, "data-ring absent")),
            NotOffered::Path(PathName::GrefMapping) => Some(fit!(WHY, "gref absent")),
            NotOffered::Path(PathName::Persistent) => Some(fit!(WHY, "persistent absent")),
            // The module asks for none of these paths.
            NotOffered::Path(
                PathName::Staging | PathName::Foreign | PathName::GuestCopy | PathName::Map | PathName::Copy,
            ) => None,
            NotOffered::Refused(_)
            | NotOffered::Queues { .. }
            | NotOffered::RingPages { .. }
            | NotOffered::SendingOn => None,
        };
        let refused = |lack: &NotOffered| match lack {
            NotOffered::Refused(PathName::Staging) => Some(fit!(WHY, "staging refused")),
            NotOffered::Refused(PathName::DataRing) => Some(fit!(WHY, "data-ring refused")),
            _ => None,
        };
        let (lacks, maps) = (vif.not_offered(), vif.gref_pages(0) > 0);
        Self {
            asked,
            shared,
            maps,
            maps_none: shared.has_pages && !maps && !vif.is_announcing(),
            persists: vif.persists(),
            refused: lacks.iter().find_map(refused),
            is_short: vif.shortage().is_some(),
            absent: lacks.iter().find_map(absent),
        }
    }

    /// Name of the path in use.
    pub fn path(&self) -> &'static str {
        match (self.shared.staged, self.shared.ringed) {
            ([true, true], _) if self.maps => fit!(PATH, "staging+gref"),
            ([true, true], _) => fit!(PATH, "staging"),
            ([true, false], _) => fit!(PATH, "tx staging"),
            ([false, true], _) => fit!(PATH, "rx staging"),
            (_, [true, true]) => fit!(PATH, "data-ring"),
            (_, [true, false]) => fit!(PATH, "tx data-ring"),
            (_, [false, true]) => fit!(PATH, "rx data-ring"),
            (_, [false, false]) if self.maps => fit!(PATH, "gref-mapping"),
            (_, [false, false]) if self.persists => fit!(PATH, "persistent"),
            (_, [false, false]) => fit!(PATH, "copy"),
        }
    }

    /// The reason why the front uses this path and no other one.
    pub fn why(&self) -> &'static str {
        let asks_to_map = matches!(self.asked, b"auto" | b"gref-mapping");
        let Shared { staged, ringed, .. } = self.shared;
        // Unless memory is short, a direction is missing only if the back refuses its list, or its
        // half.
        match (if ringed == [false; 2] { staged } else { ringed }, self.refused.or(self.absent)) {
            _ if self.is_short && self.refused.is_none() => fit!(WHY, "no memory"),
            ([true, false], _) => fit!(WHY, "rx refused"),
            ([false, true], _) => fit!(WHY, "tx refused"),
            (_, Some(what)) => what,
            // The back offered to map pages, and keeps none mapped.
            _ if asks_to_map && self.maps_none => fit!(WHY, "gref refused"),
            _ => match self.asked {
                b"staging" => fit!(WHY, "path=staging"),
                b"data-ring" => fit!(WHY, "path=data-ring"),
                b"gref-mapping" => fit!(WHY, "path=gref-mapping"),
                b"persistent" => fit!(WHY, "path=persistent"),
                b"copy" => fit!(WHY, "path=copy"),
                _ => fit!(WHY, "path=auto"),
            },
        }
    }

    /// The text with a terminating 0, for C.
    pub fn words(&self) -> Words {
        let mut to = [0; ROOM];
        let words = [self.path(), ": ", self.why()];
        let bytes = words.iter().flat_map(|word| word.bytes());
        to.iter_mut().take(ROOM - 1).zip(bytes).for_each(|(to, from)| *to = from);
        to
    }
}
