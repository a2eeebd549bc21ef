//! The path that a live front's frames take, and why: 31 characters, for `ethtool -i`.
//!
//! ```text
//!   staging+gref-mapping: path=auto   the back has all that was asked for
//!   copy: staging absent              it does not offer that
//!   copy: staging refused             it does, and did not take what was shared for it
//!   staging: short of memory          it could be more
//! ```
//! What a back may do: choose among these words.

use crate::front::Settings;
use crate::log::Line;
use core::fmt::{self, Write};
use pregrant::net::front::{FrontVif, NotOffered};
use pregrant::net::path::PathName;
use pregrant::platform::Platform;

/// Bytes, with the 0 behind them: C's `ETHTOOL_FWVERS_LEN`.
pub const ROOM: usize = 32;

/// The directions with staging, TX and RX: while its queues are not lent.
pub fn staged<P: Platform>(vif: &FrontVif<P>) -> [bool; 2] {
    vif.queue(0).map_or([false; 2], |q| [q.staging_lens().0.is_some(), q.staging_lens().1.is_some()])
}

/// Puts it into `line`.
pub fn write<P: Platform>(
    line: &mut Line,
    vif: &FrontVif<P>,
    [tx, rx]: [bool; 2],
    asked: &str,
) -> fmt::Result {
    let maps = vif.gref_pages(0) > 0;
    line.write_str(match (tx, rx, maps) {
        (true, true, true) => "staging+gref-mapping",
        (true, true, false) => "staging",
        // So short that there is room for a reason.
        (true, false, true) => "tx staging+gref",
        (true, false, false) => "tx staging",
        (false, true, true) => "rx staging+gref",
        (false, true, false) => "rx staging",
        (false, false, true) => "gref-mapping",
        (false, false, false) if vif.persists() => "persistent",
        (false, false, false) => "copy",
    })?;
    line.write_str(": ")?;
    let lacks = vif.not_offered();
    let refused = lacks.iter().find_map(|lack| match lack {
        NotOffered::Refused(path) => Some(*path),
        _ => None,
    });
    let absent = lacks.iter().find_map(|lack| match lack {
        NotOffered::DataLen { offered, .. } if !offered.is_empty() => Some("data_len"),
        NotOffered::DataLen { .. } => Some(PathName::Staging.name()),
        NotOffered::Path(path) => Some(path.name()),
        _ => None,
    });
    // It offered to, and keeps none.
    let maps_none = matches!(asked, "auto" | "gref-mapping") && !maps && !vif.is_announcing();
    match (refused, absent) {
        (Some(path), _) => write!(line, "{path} refused"),
        _ if vif.shortage().is_some() => line.write_str("short of memory"),
        (None, Some(what)) => write!(line, "{what} absent"),
        _ if maps_none => write!(line, "{} refused", PathName::GrefMapping),
        _ => write!(line, "path={asked}"),
    }
}

/// The same of settings, for C.
pub fn put<P: Platform>(to: &mut [u8; ROOM], vif: &FrontVif<P>, staged: [bool; 2], settings: &Settings) {
    let mut line = Line::default();
    // SAFETY: `pregrant_front_new`'s caller: a path is as long as its settings say.
    let asked = unsafe { core::slice::from_raw_parts(settings.path, settings.path_len) };
    let _ = write(&mut line, vif, staged, core::str::from_utf8(asked).unwrap_or_default());
    *to = [0; ROOM];
    to.iter_mut().take(ROOM - 1).zip(line.text().bytes()).for_each(|(to, from)| *to = from);
}
