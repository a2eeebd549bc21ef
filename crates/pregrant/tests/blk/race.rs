//! A guest overwrites its ring's slots, lists and pages while its back reads them. Small enough for
//! Miri, which checks that the race with a peer is one that Rust allows; of the other disk tests
//! Miri runs only those of a hostile back.

use crate::raw_front::RawFront;
use crate::world::{Setting, World};
use pregrant::blk::disk::DiskFigures;
use pregrant::blk::path::PathName;
use pregrant::ring::{AnyOrder, Blkif32, Blkif64};
use pregrant::shm::SharedBytes;
use pregrant::wire::blkif::{Abi, IndirectRequest, OP_READ, OP_WRITE, Request, Response, RwRequest, Segment};
use pregrant_testkit::mutator::{Outcomes, until_both, while_mutating};

/// Slots, pages and lists are each read once. Whatever the guest writes, the disk gets only
/// requests for sectors that it has, with as many bytes (the model disk checks that), and each
/// request is answered. Some are executed as they were sent, some as the other processor changed
/// them.
fn race<K: AnyOrder<Req = Request, Rsp = Response>>(setting: &Setting) {
    const LIST: usize = 3;
    let mut world = World::new(setting.back, DiskFigures::of(64));
    let mut front = RawFront::<K>::connect(&mut world, LIST + 1);
    let sector = |page: usize| Segment { gref: front.refs[page].0, first_sect: 0, last_sect: 0 };
    let (ring, pages) = (front.ring(), front.pages.clone());
    let entries = [sector(0), sector(1)].map(Segment::to_bytes).concat();
    let mut seg = [Segment::default(); 11];
    (seg[0], seg[1]) = (sector(0), sector(1));
    let mut grefs = [0; 8];
    grefs[0] = front.refs[LIST].0;
    let wild = |x: u32| {
        let word = (x >> 8) as usize;
        // An op or a sector, often a right one; an entry's sectors; a page's bytes.
        let there = match x >> 29 {
            0 | 1 => ring.store_u32(64 + 4 * (word % (32 * K::SLOT_WORDS)), x >> 24 & 3),
            2..4 => pages.copy_in(LIST * 4096 + 4 + word % 2 * 8, &(x as u16 & 0x0303).to_le_bytes()),
            4 => pages.copy_in(LIST * 4096, &entries),
            _ => pages.copy_in(word % 2 * 4096 + word % 128 * 4, &x.to_le_bytes()),
        };
        assert!(there, "its own memory");
        std::thread::yield_now();
    };
    while_mutating(wild, || {
        until_both(60, |seen: &mut Outcomes| {
            assert!(pages.copy_in(LIST * 4096, &entries));
            let before = world.back.shares()[0].counters.read();
            for op in [OP_READ, OP_WRITE] {
                let (handle, id, sector) = (0, 7, 9);
                front.push(&Request::ReadWrite(RwRequest { op, nr_segments: 2, handle, id, sector, seg }));
                let list = IndirectRequest { op, nr_segments: 2, handle, id, sector, grefs };
                front.push(&Request::Indirect(list));
            }
            front.publish();
            for _ in 0..3 {
                world.poll_back();
            }
            assert_eq!(front.answers().len(), 4, "{setting:?}");
            let after = world.back.shares()[0].counters.read();
            let good = |c: &pregrant::blk::back::Counts| c.reads + c.writes;
            let done = good(&after) - good(&before);
            assert!(done <= 4);
            seen.count(done < 4);
        });
    });
    front.end(world);
}

#[test]
fn xsa_155_197_a_disk_s_requests_rewritten_while_they_are_read() {
    // Mapped pages are what a disk reads while they change; Miri is slow, and has lists and slots
    // there too.
    let paths = if cfg!(miri) { &[PathName::Map][..] } else { &PathName::ALL };
    for path in paths {
        race::<Blkif64>(&Setting::of(*path, Abi::X86_64));
    }
    if !cfg!(miri) {
        race::<Blkif32>(&Setting::of(PathName::Map, Abi::X86_32));
    }
}
