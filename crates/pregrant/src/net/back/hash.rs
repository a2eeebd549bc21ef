//! How a guest wants its frames hashed and distributed over its queues (docs/protocol 2.11).
//!
//! ```text
//!   frame --addresses, ports--> Toeplitz --value--> table[value % size], or value % queues
//!                                  '-- and into the frame's HASH extra info
//! ```
//! Without an algorithm or a hash type the port chooses the queue, and frames have no hash. A frame
//! of none of the requested types has the hash 0 and no extra info, as in Linux.
//!
//! What a guest may do: set anything in any order. The table never names a queue that does not
//! exist; key and table have fixed sizes. The frames are other guests' data: one whose headers
//! cannot be parsed has no hash.

use crate::error::PlatformError;
use crate::net::batch::FrameHash;
use crate::net::headers::{IpHeaders, IpVersion, PROTOCOL_TCP};
use crate::net::toeplitz::{KEY_MAX, Toeplitz};
use crate::port::Steering;
use crate::wire::netif_ctrl::{
    self, CtrlStatus, HASH_ALGORITHM_NONE, HASH_TYPE_ALL, HASH_TYPE_IPV4, HASH_TYPE_IPV4_TCP, HASH_TYPE_IPV6,
    HASH_TYPE_IPV6_TCP,
};

/// Largest number of entries of the table from hash to queue, as in Linux.
pub const MAPPING_MAX: usize = 128;

/// The hash settings of a guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HashSettings {
    toeplitz: bool,
    flags: u32,
    key: [u8; KEY_MAX],
    /// The precomputed key.
    ready: Toeplitz,
    mapping: [u16; MAPPING_MAX],
    /// Number of the table's entries that are used; 0: the queue is the hash modulo the number of
    /// queues.
    size: usize,
}

impl Default for HashSettings {
    fn default() -> Self {
        let (key, ready, mapping) = ([0; KEY_MAX], Toeplitz::default(), [0; MAPPING_MAX]);
        Self { toeplitz: false, flags: 0, key, ready, mapping, size: 0 }
    }
}

impl HashSettings {
    /// Takes memory for a key, if there is none yet. Otherwise the first key that is set takes it,
    /// and what [becomes equal](Self::copy_from) to settings with a key has none.
    pub fn make_room(&mut self) -> Result<(), PlatformError> {
        self.ready.make_room()
    }

    /// Becomes equal to `from`, in the memory that it has.
    pub fn copy_from(&mut self, from: &Self) {
        let Self { toeplitz, flags, key, ready, mapping, size } = from;
        (self.toeplitz, self.flags, self.key, self.size) = (*toeplitz, *flags, *key, *size);
        self.ready.copy_from(ready);
        self.mapping = *mapping;
    }

    /// Becomes as it was before the guest set anything; the memory stays.
    pub fn clear(&mut self) {
        self.copy_from(&Self::default());
    }

    /// Whether frames get a hash.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.toeplitz && self.flags != 0
    }

    /// The algorithm's number.
    pub fn algorithm(&self) -> u32 {
        if self.toeplitz { netif_ctrl::HASH_ALGORITHM_TOEPLITZ } else { HASH_ALGORITHM_NONE }
    }

    /// The types that are hashed, a mask of `HASH_TYPE_*`.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// The key.
    pub fn key(&self) -> &[u8; KEY_MAX] {
        &self.key
    }

    /// The entries of the table that are used.
    pub fn mapping(&self) -> &[u16] {
        self.mapping.get(..self.size).unwrap_or_default()
    }

    /// Implements `SET_HASH_ALGORITHM`.
    pub fn set_algorithm(&mut self, algorithm: u32) -> CtrlStatus {
        self.toeplitz = match algorithm {
            HASH_ALGORITHM_NONE => false,
            netif_ctrl::HASH_ALGORITHM_TOEPLITZ => true,
            _ => return CtrlStatus::InvalidParameter,
        };
        CtrlStatus::Success
    }

    /// Implements `GET_HASH_FLAGS`: the possible types, once there is an algorithm (before that,
    /// Linux answers NOT_SUPPORTED).
    pub fn possible_flags(&self) -> (CtrlStatus, u32) {
        if self.toeplitz { (CtrlStatus::Success, HASH_TYPE_ALL) } else { (CtrlStatus::NotSupported, 0) }
    }

    /// Implements `SET_HASH_FLAGS`.
    pub fn set_flags(&mut self, flags: u32) -> CtrlStatus {
        if !self.toeplitz || flags & !HASH_TYPE_ALL != 0 {
            return CtrlStatus::InvalidParameter;
        }
        self.flags = flags;
        CtrlStatus::Success
    }

    /// Implements `SET_HASH_KEY`. A shorter key is padded with zeroes.
    pub fn set_key(&mut self, key: &[u8]) -> CtrlStatus {
        if key.len() > KEY_MAX {
            return CtrlStatus::BufferOverflow;
        }
        if self.make_room().is_err() {
            return CtrlStatus::BufferOverflow;
        }
        self.key = [0; KEY_MAX];
        self.key.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
        self.ready.set(&self.key);
        CtrlStatus::Success
    }

    /// Implements `SET_HASH_MAPPING_SIZE`: the new table has zeroes.
    pub fn set_mapping_size(&mut self, size: u32) -> CtrlStatus {
        if size as usize > MAPPING_MAX {
            return CtrlStatus::InvalidParameter;
        }
        self.mapping.fill(0);
        self.size = size as usize;
        CtrlStatus::Success
    }

    /// Whether `SET_HASH_MAPPING` may write `count` entries from `first` on, without overflow
    /// (XSA-270).
    pub fn check_mapping(&self, count: u32, first: u32) -> CtrlStatus {
        if count as usize > MAPPING_MAX {
            return CtrlStatus::BufferOverflow;
        }
        match first.checked_add(count) {
            Some(end) if end as usize <= self.size => CtrlStatus::Success,
            _ => CtrlStatus::InvalidParameter,
        }
    }

    /// Implements `SET_HASH_MAPPING`: all entries or none; each must be one of `queues` queues.
    pub fn set_mapping(&mut self, entries: &[u32], first: u32, queues: usize) -> CtrlStatus {
        let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        let checked = self.check_mapping(count, first);
        if checked != CtrlStatus::Success {
            return checked;
        }
        if entries.iter().any(|&queue| queue as usize >= queues) {
            return CtrlStatus::InvalidParameter;
        }
        for (to, &queue) in self.mapping.iter_mut().skip(first as usize).zip(entries) {
            *to = queue as u16; // a vif has fewer queues than that
        }
        CtrlStatus::Success
    }

    /// The hash of a frame: over addresses and ports if it is TCP and that type was requested,
    /// otherwise over addresses if that was requested. None: the frame gets no hash.
    pub fn hash(&self, frame: &[u8]) -> Option<FrameHash> {
        let ip = IpHeaders::parse(frame).ok()?;
        let (addresses, only_ip, with_tcp) = match ip.version {
            IpVersion::V4 => (frame.get(ip.l2_len + 12..ip.l2_len + 20)?, HASH_TYPE_IPV4, HASH_TYPE_IPV4_TCP),
            IpVersion::V6 => (frame.get(ip.l2_len + 8..ip.l2_len + 40)?, HASH_TYPE_IPV6, HASH_TYPE_IPV6_TCP),
        };
        let ports = match ip.protocol {
            PROTOCOL_TCP if !ip.fragment && ip.l4_len() >= 4 => frame.get(ip.l4_at..ip.l4_at + 4)?,
            _ => &[],
        };
        let (kind, ports) = if self.flags & with_tcp != 0 && !ports.is_empty() {
            (with_tcp, ports)
        } else if self.flags & only_ip != 0 {
            (only_ip, &[][..])
        } else {
            return None;
        };
        let value = self.ready.hash_of(addresses.iter().chain(ports).copied());
        Some(FrameHash { hash_type: kind.trailing_zeros() as u8, value })
    }

    /// The queue for a hash, out of `queues`.
    pub fn queue(&self, hash: u32, queues: usize) -> usize {
        let queue = match self.mapping() {
            [] => hash as usize,
            table => table.get(hash as usize % table.len()).copied().unwrap_or_default().into(),
        };
        queue % queues.max(1)
    }
}

/// A copy of the settings for ports, for a number of queues.
#[derive(Clone, Debug, Default)]
pub struct HashSteering {
    /// The settings.
    pub settings: HashSettings,
    /// The number of queues.
    pub queues: usize,
}

impl HashSteering {
    /// A steering with memory for the settings that it will get.
    pub fn new() -> Result<Self, PlatformError> {
        let mut steering = Self::default();
        steering.settings.make_room()?;
        Ok(steering)
    }
}

impl Steering for HashSteering {
    fn queue_of(&self, frame: &[u8]) -> usize {
        let hash = self.settings.hash(frame).map_or(0, |h| h.value);
        self.settings.queue(hash, self.queues)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const KEY: [u8; KEY_MAX] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];
    const TCP: u8 = 6;
    const UDP: u8 = 17;

    fn set(flags: u32) -> HashSettings {
        let mut s = HashSettings::default();
        assert_eq!(s.set_algorithm(1), CtrlStatus::Success);
        assert_eq!((s.set_flags(flags), s.set_key(&KEY)), (CtrlStatus::Success, CtrlStatus::Success));
        s
    }

    /// Returns a packet from 66.9.149.187:2794 to 161.142.100.80:1766.
    fn v4(protocol: u8) -> Vec<u8> {
        let mut f = Vec::from([0u8; 12]);
        f.extend([8, 0, 0x45, 0, 0, 40, 0, 1, 0, 0, 64, protocol, 0, 0]);
        f.extend([66, 9, 149, 187, 161, 142, 100, 80]);
        f.extend(2794u16.to_be_bytes());
        f.extend(1766u16.to_be_bytes());
        f.extend([0; 16]);
        f
    }

    /// Returns a packet from 3ffe:2501:200:1fff::7 to 3ffe:2501:200:3::1, with the same ports as
    /// [`v4`].
    fn v6(protocol: u8) -> Vec<u8> {
        let mut f = Vec::from([0u8; 12]);
        f.extend([0x86, 0xDD, 0x60, 0, 0, 0, 0, 20, protocol, 64]);
        f.extend([0x3f, 0xfe, 0x25, 1, 2, 0, 0x1f, 0xff, 0, 0, 0, 0, 0, 0, 0, 7]);
        f.extend([0x3f, 0xfe, 0x25, 1, 2, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1]);
        f.extend(2794u16.to_be_bytes());
        f.extend(1766u16.to_be_bytes());
        f.extend([0; 16]);
        f
    }

    /// Checks the test vectors of docs/protocol 2.11.
    #[test]
    fn published_vectors() {
        let all = set(HASH_TYPE_ALL);
        let hash = |frame: &[u8]| all.hash(frame).map(|h| (h.hash_type, h.value));
        assert_eq!(hash(&v4(UDP)), Some((0, 0x323e_8fc2)));
        assert_eq!(hash(&v4(TCP)), Some((1, 0x51cc_c178)));
        assert_eq!(hash(&v6(UDP)), Some((2, 0x2cc1_8cd5)));
        assert_eq!(hash(&v6(TCP)), Some((3, 0x4020_7d3d)));
    }

    #[test]
    fn the_longest_type_that_was_asked_for() {
        let types = |flags| {
            let s = set(flags);
            [v4(UDP), v4(TCP), v6(UDP), v6(TCP)].map(|f| s.hash(&f).map(|h| h.hash_type))
        };
        assert_eq!(types(HASH_TYPE_IPV4), [Some(0), Some(0), None, None]);
        assert_eq!(types(HASH_TYPE_IPV4_TCP), [None, Some(1), None, None]);
        assert_eq!(types(HASH_TYPE_IPV6 | HASH_TYPE_IPV4_TCP), [None, Some(1), Some(2), Some(2)]);
        assert_eq!(types(HASH_TYPE_IPV6_TCP), [None, None, None, Some(3)]);
        // A later fragment has no ports, and using those of the first would separate it from the
        // others.
        let mut fragment = v4(TCP);
        fragment[20] = 0x20;
        assert_eq!(set(HASH_TYPE_ALL).hash(&fragment).map(|h| h.hash_type), Some(0));
        // No frame causes a panic.
        let all = set(HASH_TYPE_ALL);
        for frame in [v4(TCP), v6(TCP)] {
            for len in 0..frame.len() {
                let _ = all.hash(&frame[..len]);
            }
        }
        assert_eq!(all.hash(&[0xFF; 60]), None);
    }

    #[test]
    fn queues_by_table_or_by_modulo() {
        let mut s = set(HASH_TYPE_ALL);
        assert_eq!((s.queue(7, 4), s.queue(0, 4), s.queue(u32::MAX, 3)), (3, 0, u32::MAX as usize % 3));
        assert_eq!(s.set_mapping_size(5), CtrlStatus::Success);
        assert_eq!(s.queue(7, 4), 0, "a new table is all zeroes");
        assert_eq!(s.set_mapping(&[3, 1], 2, 4), CtrlStatus::Success);
        assert_eq!([0, 1, 2, 3, 4, 5, 7].map(|h| s.queue(h, 4)), [0, 0, 3, 1, 0, 0, 3]);
        assert_eq!(s.queue(2, 2), 1, "fewer queues than the table knew");
        let steering = HashSteering { settings: s.clone(), queues: 4 };
        assert_eq!(steering.queue_of(&v4(TCP)), s.queue(0x51cc_c178, 4));
        assert_eq!(steering.queue_of(&[0xFF; 60]), s.queue(0, 4));
        assert_eq!(s.set_mapping_size(0), CtrlStatus::Success);
        assert_eq!(s.queue(7, 4), 3);
    }

    #[test]
    fn settings_are_checked() {
        use CtrlStatus::{BufferOverflow, InvalidParameter, NotSupported, Success};
        let mut s = HashSettings::default();
        assert_eq!(
            (s.possible_flags(), s.set_flags(1), s.is_on()),
            ((NotSupported, 0), InvalidParameter, false)
        );
        assert_eq!((s.set_algorithm(2), s.set_algorithm(1)), (InvalidParameter, Success));
        assert_eq!((s.possible_flags(), s.is_on()), ((Success, 0xF), false));
        assert_eq!((s.set_flags(0x10), s.set_flags(0xF), s.is_on()), (InvalidParameter, Success, true));
        assert_eq!((s.set_key(&[1; 41]), s.set_key(&[1; 40])), (BufferOverflow, Success));
        assert_ne!(s.hash(&v4(TCP)).unwrap().value, 0);
        // A shorter key replaces the whole key; an empty one makes every hash 0.
        assert_eq!((s.set_key(&[2]), s.key()[..2] == [2, 0]), (Success, true));
        assert_eq!((s.set_key(&[]), s.hash(&v4(TCP)).unwrap().value), (Success, 0));
        assert_eq!(s.set_algorithm(0), Success);
        assert!(!s.is_on());
    }

    #[test]
    fn xsa_270_a_table_is_written_inside_of_itself_only() {
        use CtrlStatus::{BufferOverflow, InvalidParameter, Success};
        let mut s = set(1);
        assert_eq!((s.set_mapping_size(129), s.set_mapping_size(8)), (InvalidParameter, Success));
        for (count, first) in
            [(1, u32::MAX), (2, u32::MAX), (8, u32::MAX - 7), (1, 8), (9, 0), (0, 9), (5, 4)]
        {
            assert_eq!(s.check_mapping(count, first), InvalidParameter, "{count} from {first}");
        }
        for count in [129, 1024, 1025, u32::MAX] {
            assert_eq!(s.check_mapping(count, 0), BufferOverflow);
            assert_eq!(s.check_mapping(count, 1u32.wrapping_sub(count)), BufferOverflow);
        }
        assert_eq!(
            (s.check_mapping(0, 8), s.check_mapping(8, 0), s.check_mapping(1, 7)),
            (Success, Success, Success)
        );
        // With one invalid entry, no entry of the list is written.
        for wrong in [4, 5, 0x1_0000, u32::MAX] {
            assert_eq!(s.set_mapping(&[3, 3, wrong], 0, 4), InvalidParameter);
            assert_eq!(s.mapping(), [0; 8]);
        }
        assert_eq!((s.set_mapping(&[3; 8], 0, 4), s.mapping()), (Success, &[3; 8][..]));
    }
}
