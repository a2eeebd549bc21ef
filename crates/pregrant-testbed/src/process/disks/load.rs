//! The requests of one guest to its disk, and its check that it reads the bytes that it wrote.
//!
//! ```text
//!   disk     [ place 0's part | place 1's part | ... ]     a place has one request in flight at a time, within its part
//!   sector   [ its number, 8 | its generation, 4 | the guest, 4 | the guest's filling, 496 ]
//! ```
//! A write gives its sectors their next generation. As no two requests in flight meet, a read has
//! one right answer: the number and the last generation of each of its sectors. Those are checked
//! in every read; every byte in one of [`WHOLE_EACH`].

use super::disks_command::{Dir, Load, Rested};
use pregrant::blk::disk::SECTOR_BYTES;

/// One read in this many is checked completely.
pub const WHOLE_EACH: u64 = 64;
/// Number of bytes at the beginning of a sector that differ between sectors.
const HEAD: usize = 16;

/// The request that occupies a place among those in flight.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// True if the request is a read, false if it is a write.
    pub reads: bool,
    pub sector: u64,
}

/// The counts of one load.
pub struct Played {
    /// Number of requests that were answered in the measured time.
    pub requests: u64,
    pub seconds: f64,
    /// CPU time that the client used in the measured time.
    pub cpu_ns: u64,
    /// The results of all requests, including those outside of the measured time.
    pub rested: Rested,
}

/// The contents that the guest wrote to the disk, from which reads are checked, and the choice of
/// the next requests.
pub struct Contents {
    guest: u32,
    generations: Vec<u32>,
    /// The data of one request, except for the first bytes of its sectors.
    filled: Vec<u8>,
    random: u64,
    reads: u64,
    pub damaged: u64,
    /// Number of reads whose every byte was checked.
    pub checked: u64,
}

/// Returns the first bytes of a sector, which tell its number, its generation and its guest.
fn head(number: u64, generation: u32, guest: u32) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&number.to_le_bytes());
    head[8..12].copy_from_slice(&generation.to_le_bytes());
    head[12..].copy_from_slice(&guest.to_le_bytes());
    head
}

impl Contents {
    /// Creates the contents of a disk with this number of sectors, none of which is written yet,
    /// for requests of at most `most` bytes.
    pub fn new(guest: u32, sectors: u64, most: usize) -> Self {
        let filling = |k: usize| (k % SECTOR_BYTES) as u8 ^ ((k % SECTOR_BYTES) >> 3) as u8 ^ guest as u8;
        Self {
            guest,
            generations: vec![0; sectors as usize],
            filled: (0..most).map(filling).collect(),
            random: 0x9e37_79b9_7f4a_7c15 ^ u64::from(guest),
            reads: 0,
            damaged: 0,
            checked: 0,
        }
    }

    /// Returns the number of sectors of the disk.
    pub fn sectors(&self) -> u64 {
        self.generations.len() as u64
    }

    /// Returns a random number by xorshift64*, since the choice of the next sector must cost next
    /// to nothing.
    fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    /// Chooses the next request of place `place`.
    pub fn next(&mut self, place: usize, load: &Load) -> Asked {
        let part = self.sectors() / load.depth.max(1) as u64;
        let (size, align) = ((load.size / SECTOR_BYTES) as u64, (load.align / SECTOR_BYTES) as u64);
        // The part begins at a multiple of the alignment.
        let begin = (place as u64 * part).next_multiple_of(align);
        let end = (place as u64 + 1) * part;
        let choices = (end.saturating_sub(begin + size)) / align + 1;
        let random = self.random();
        let sector = begin + ((random * choices) >> 32) * align;
        let reads = match load.dir {
            Dir::Read => true,
            Dir::Write => false,
            Dir::Mixed => self.random() & 1 == 0,
        };
        Asked { reads, sector }
    }

    /// Returns the bytes of a write, whose sectors begin with the next generation.
    pub fn write(&mut self, sector: u64, len: usize) -> &[u8] {
        let (filled, _) = self.filled[..len].as_chunks_mut::<SECTOR_BYTES>();
        for ((number, bytes), generation) in
            (sector..).zip(filled).zip(&mut self.generations[sector as usize..])
        {
            *generation += 1;
            bytes[..HEAD].copy_from_slice(&head(number, *generation, self.guest));
        }
        &self.filled[..len]
    }

    /// Prepares a write as [`write`](Self::write) does, for a buffer that is filled already: `put`
    /// gets the first bytes of each sector with their offset.
    pub fn write_heads(&mut self, sector: u64, len: usize, mut put: impl FnMut(usize, &[u8])) {
        let generations = &mut self.generations[sector as usize..][..len / SECTOR_BYTES];
        for ((number, k), generation) in (sector..).zip(0..).zip(generations) {
            *generation += 1;
            put(k * SECTOR_BYTES, &head(number, *generation, self.guest));
        }
    }

    /// Returns the bytes that fill a buffer, except for the first bytes of sectors.
    pub fn filling(&self) -> &[u8] {
        &self.filled
    }

    /// True if this read is one that is not checked, for a guest that checks only few.
    pub fn passes_over(&mut self) -> bool {
        let passes = !(self.reads + 1).is_multiple_of(WHOLE_EACH);
        self.reads += u64::from(passes);
        passes
    }

    /// Checks the data of a read, as described at the head of this file.
    pub fn read(&mut self, sector: u64, bytes: &[u8]) {
        self.reads += 1;
        let whole = self.reads.is_multiple_of(WHOLE_EACH);
        self.checked += u64::from(whole);
        self.damaged += u64::from(!self.is_right(sector, bytes, whole));
    }

    /// Like [`read`](Self::read), in place: `get` copies bytes from an offset on.
    pub fn read_in_place(&mut self, sector: u64, len: usize, mut get: impl FnMut(usize, &mut [u8])) {
        self.reads += 1;
        let whole = self.reads.is_multiple_of(WHOLE_EACH);
        self.checked += u64::from(whole);
        let mut bytes = [0; SECTOR_BYTES];
        let part = if whole { SECTOR_BYTES } else { HEAD };
        let is_right = (sector..).zip((0..len).step_by(SECTOR_BYTES)).all(|(number, at)| {
            get(at, &mut bytes[..part]);
            self.is_right(number, &bytes, whole)
        });
        self.damaged += u64::from(!is_right);
    }

    /// Returns true if these sectors contain what was last written to them. Checks the first bytes
    /// of each sector, or with `whole` all bytes.
    pub fn is_right(&self, sector: u64, bytes: &[u8], whole: bool) -> bool {
        let (sectors, rest) = bytes.as_chunks::<SECTOR_BYTES>();
        let (filling, _) = self.filled.as_chunks::<SECTOR_BYTES>();
        rest.is_empty()
            && (sector..).zip(sectors).zip(&self.generations[sector as usize..]).all(
                |((number, bytes), generation)| {
                    bytes[..8] == number.to_le_bytes()
                        && bytes[8..12] == generation.to_le_bytes()
                        && bytes[12..HEAD] == self.guest.to_le_bytes()
                        && (!whole || bytes[HEAD..] == filling[0][HEAD..])
                },
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(dir: Dir, size: usize, align: usize, depth: usize) -> Load {
        Load { sleeps: false, ..Load::of(dir, size, align, depth) }
    }

    #[test]
    fn requests_in_flight_never_meet_and_stay_on_the_disk() {
        for (size, align, depth) in [(4096, 4096, 32), (4096, 512, 7), (65536, 512, 3), (1 << 20, 4096, 1)] {
            let load = load(Dir::Mixed, size, align, depth);
            let mut contents = Contents::new(3, 1 << 14, size);
            let sectors = (size / SECTOR_BYTES) as u64;
            for _ in 0..2000 {
                let mut all: Vec<Asked> = (0..depth).map(|place| contents.next(place, &load)).collect();
                assert!(all.iter().all(|asked| asked.sector.is_multiple_of((align / SECTOR_BYTES) as u64)));
                all.sort_by_key(|asked| asked.sector);
                assert!(all.windows(2).all(|two| two[0].sector + sectors <= two[1].sector), "{all:?}");
                assert!(all.iter().all(|asked| asked.sector + sectors <= 1 << 14), "{all:?}");
            }
        }
    }

    #[test]
    fn of_a_careless_guest_s_reads_few_are_checked_and_those_whole() {
        let mut contents = Contents::new(9, 64, 4096);
        let bytes = contents.write(8, 4096).to_vec();
        for _ in 0..3 * WHOLE_EACH {
            if !contents.passes_over() {
                contents.read(8, &bytes);
            }
        }
        assert_eq!((contents.checked, contents.damaged), (3, 0));
    }

    #[test]
    fn the_last_guest_is_the_greedy_one() {
        let all = Load { greedy: Some(1 << 20), ..load(Dir::Read, 4096, 4096, 256) };
        assert_eq!(all.of_guest(2, 4), all);
        let last = all.of_guest(3, 4);
        assert_eq!(
            (last.size, last.depth, last.careless),
            (1 << 20, super::super::disks_command::GREEDY_DEPTH, true)
        );
    }

    #[test]
    fn all_of_a_disk_is_asked_for_and_both_ways() {
        let load = load(Dir::Mixed, 4096, 4096, 1);
        let mut contents = Contents::new(3, 64 * 8, 4096);
        let asked: Vec<Asked> = (0..4000).map(|_| contents.next(0, &load)).collect();
        for block in 0..64 {
            assert!(asked.iter().any(|asked| asked.sector == block * 8), "block {block}");
        }
        let reads = asked.iter().filter(|asked| asked.reads).count();
        assert!((1500..2500).contains(&reads), "{reads} reads of 4000");
    }

    /// A filled buffer to which only the first bytes of sectors are written equals that of a write,
    /// and reads as such.
    #[test]
    fn a_buffer_that_is_filled_needs_heads_alone() {
        let (mut whole, mut heads) = (Contents::new(9, 64, 4096), Contents::new(9, 64, 4096));
        let mut buffer = heads.filling().to_vec();
        for _ in 0..2 * WHOLE_EACH {
            heads.write_heads(8, 4096, |at, head| buffer[at..at + head.len()].copy_from_slice(head));
            assert_eq!(buffer, whole.write(8, 4096));
            heads.read_in_place(8, 4096, |at, to| to.copy_from_slice(&buffer[at..at + to.len()]));
        }
        assert_eq!((heads.checked, heads.damaged), (2, 0));
        buffer[512] ^= 1;
        heads.read_in_place(8, 4096, |at, to| to.copy_from_slice(&buffer[at..at + to.len()]));
        assert_eq!(heads.damaged, 1);
    }

    #[test]
    fn a_read_of_anything_but_the_last_write_is_damaged() {
        let mut contents = Contents::new(9, 64, 8192);
        let old = contents.write(8, 4096).to_vec();
        let new = contents.write(8, 4096).to_vec();
        contents.read(8, &new);
        assert_eq!(contents.damaged, 0);
        contents.read(8, &old);
        contents.read(16, &new);
        contents.read(8, &[0; 4096]);
        assert_eq!(contents.damaged, 3);
        // A byte after a head is checked only in one read of many.
        let mut bad = new.clone();
        bad[4095] ^= 1;
        for _ in 0..WHOLE_EACH {
            contents.read(8, &bad);
        }
        assert_eq!((contents.damaged, contents.checked), (4, 1));
    }
}
