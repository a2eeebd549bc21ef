//! The two kinds of datagram, as bytes.
//!
//! ```text
//!   data   magic u32 | kind 1 u8, repeat u8, 0 u16 | run u64 | number u64 | sum u64 | bytes made from run and number
//!   acks   magic u32 | kind 2 u8, 0 u8, n u16      | run u64 | counters 4 x u64 | sum u64 | n numbers u64
//! ```
//! Little endian. The sum is over all bytes but its own, and over the length; the bytes after it
//! are known to both ends, so that a change shows even if the sum were right.

/// Number of bytes of the shortest datagram.
pub(super) const LEAST: usize = 32;
/// Length in bytes of the longest datagram of UDP over IPv4.
pub(super) const MOST: usize = 65_507;
/// Largest number of datagrams that one acknowledgement names.
pub(super) const ACKS_MOST: usize = 64;

const MAGIC: u32 = 0x5052_4746;
const DATA: u8 = 1;
const ACKS: u8 = 2;
const ACKS_HEADER: usize = 56;

/// The numbers that the receiver counts in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counters {
    pub(super) received: u64,
    /// Number of datagrams from the same address whose content was changed on the way.
    pub(super) damaged: u64,
    /// Number of datagrams that arrived after one that was sent later.
    pub(super) out_of_order: u64,
    /// Number of datagrams that arrived twice or more.
    pub(super) again: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Data {
    pub(super) run: u64,
    pub(super) number: u64,
    /// True if the datagram was sent before.
    pub(super) repeat: bool,
}

/// Spreads the input over all bits (the last step of splitmix64).
pub(super) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Returns a sum of bytes in which every bit and every position counts.
fn sum(parts: [&[u8]; 2]) -> u64 {
    let mut sum = parts.iter().map(|p| p.len() as u64).sum();
    for chunk in parts.iter().flat_map(|p| p.chunks(8)) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        sum = mix(sum ^ u64::from_le_bytes(word));
    }
    sum
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Writes the bytes after the header, which depend on the run and the number.
fn fill(run: u64, number: u64, into: &mut [u8]) {
    let mut state = run ^ number.rotate_left(32);
    for chunk in into.chunks_mut(8) {
        state = mix(state);
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

fn header(kind: u8, flag: u8, n: u16) -> [u8; 8] {
    let mut header = [0; 8];
    header[..4].copy_from_slice(&MAGIC.to_le_bytes());
    (header[4], header[5]) = (kind, flag);
    header[6..].copy_from_slice(&n.to_le_bytes());
    header
}

impl Data {
    /// Writes a datagram of `len` bytes over `into`.
    pub(super) fn write(&self, len: usize, into: &mut Vec<u8>) {
        into.clear();
        into.resize(len.max(LEAST), 0);
        into[..8].copy_from_slice(&header(DATA, self.repeat.into(), 0));
        into[8..16].copy_from_slice(&self.run.to_le_bytes());
        into[16..24].copy_from_slice(&self.number.to_le_bytes());
        fill(self.run, self.number, &mut into[LEAST..]);
        let sum = sum([&into[..24], &into[LEAST..]]);
        into[24..LEAST].copy_from_slice(&sum.to_le_bytes());
    }

    /// Parses a datagram. None: the bytes are damaged, or are not a datagram of ours.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (run, number) = (word(bytes, 8)?, word(bytes, 16)?);
        let repeat = *bytes.get(5)?;
        let (head, rest) = (bytes.get(..24)?, bytes.get(LEAST..)?);
        let mut known = vec![0; rest.len()];
        fill(run, number, &mut known);
        let good = head[..8] == header(DATA, repeat, 0)
            && repeat < 2
            && word(bytes, 24)? == sum([head, rest])
            && known == rest;
        good.then_some(Self { run, number, repeat: repeat == 1 })
    }
}

/// Writes an acknowledgement of `numbers` over `into`.
pub(super) fn write_acks(run: u64, counters: &Counters, numbers: &[u64], into: &mut Vec<u8>) {
    let Counters { received, damaged, out_of_order, again } = *counters;
    let numbers = &numbers[..numbers.len().min(ACKS_MOST)];
    into.clear();
    into.extend(header(ACKS, 0, numbers.len() as u16));
    [run, received, damaged, out_of_order, again, 0].iter().for_each(|w| into.extend(w.to_le_bytes()));
    numbers.iter().for_each(|n| into.extend(n.to_le_bytes()));
    let sum = sum([&into[..48], &into[ACKS_HEADER..]]);
    into[48..ACKS_HEADER].copy_from_slice(&sum.to_le_bytes());
}

/// Parses an acknowledgement of `run`: its counters and numbers. None: it is damaged, or belongs to
/// another run.
pub(super) fn read_acks(bytes: &[u8], run: u64) -> Option<(Counters, impl Iterator<Item = u64>)> {
    let (head, rest) = (bytes.get(..48)?, bytes.get(ACKS_HEADER..)?);
    let n = rest.len() / 8;
    let good = head[..8] == header(ACKS, 0, u16::try_from(n).ok()?)
        && word(bytes, 8)? == run
        && word(bytes, 48)? == sum([head, rest]);
    let counters = Counters {
        received: word(bytes, 16)?,
        damaged: word(bytes, 24)?,
        out_of_order: word(bytes, 32)?,
        again: word(bytes, 40)?,
    };
    good.then(|| (counters, rest.chunks_exact(8).filter_map(|c| word(c, 0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_bit_shows() {
        let data = Data { run: 7, number: 3, repeat: true };
        for len in [LEAST, 64, 77, 1472] {
            let mut bytes = Vec::new();
            data.write(len, &mut bytes);
            assert_eq!((bytes.len(), Data::read(&bytes)), (len, Some(data)));
            for bit in 0..len * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Data::read(&bytes), None, "bit {bit} of {len} bytes");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            assert_eq!(Data::read(&bytes[..len - 1]), None);
            bytes.push(0);
            assert_eq!(Data::read(&bytes), None);
        }
    }

    #[test]
    fn bytes_of_another_number_do_not_pass_with_a_right_sum() {
        let mut bytes = Vec::new();
        Data { run: 7, number: 3, repeat: false }.write(100, &mut bytes);
        bytes[16] = 4;
        let sum = sum([&bytes[..24], &bytes[LEAST..]]);
        bytes[24..LEAST].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(Data::read(&bytes), None);
    }

    #[test]
    fn acknowledgements_belong_to_a_run_and_are_whole() {
        let counters = Counters { received: 5, damaged: 1, out_of_order: 2, again: 3 };
        let mut bytes = Vec::new();
        write_acks(7, &counters, &[9, 4], &mut bytes);
        let (read, numbers) = read_acks(&bytes, 7).unwrap();
        assert_eq!((read, numbers.collect::<Vec<_>>()), (counters, vec![9, 4]));
        assert!(read_acks(&bytes, 8).is_none());
        for at in 0..bytes.len() {
            bytes[at] ^= 0x10;
            assert!(read_acks(&bytes, 7).is_none(), "byte {at}");
            bytes[at] ^= 0x10;
        }
    }
}
