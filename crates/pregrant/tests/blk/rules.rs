//! Requests that a guest may send, and those that must never reach its disk.
#![cfg(not(miri))]

use crate::raw_front::RawFront;
use crate::world::{SECTORS, Setting, World, figures};
use pregrant::GrantRef;
use pregrant::blk::back::VbdConfig;
use pregrant::blk::disk::{DiskFigures, IoError, IoOp};
use pregrant::blk::path::PathName;
use pregrant::ring::{AnyOrder, Blkif32, Blkif64};
use pregrant::shm::SharedBytes;
use pregrant::wire::blkif::{
    Abi, DISCARD_SECURE, DiscardRequest, IndirectRequest, OP_FLUSH_DISKCACHE, OP_READ, OP_WRITE,
    OP_WRITE_BARRIER, RSP_EOPNOTSUPP, RSP_ERROR, RSP_OKAY, Request, Response, RwRequest, Segment,
};

fn rw(op: u8, sector: u64, segs: &[(u32, u8, u8)]) -> Request {
    let mut seg = [Segment::default(); 11];
    for (seg, &(gref, first_sect, last_sect)) in seg.iter_mut().zip(segs) {
        *seg = Segment { gref, first_sect, last_sect };
    }
    Request::ReadWrite(RwRequest {
        op,
        nr_segments: segs.len() as u8,
        handle: 9,
        id: u64::MAX - 7,
        sector,
        seg,
    })
}

fn too_many(op: u8, nr_segments: u8) -> Request {
    let Request::ReadWrite(r) = rw(op, 0, &[]) else { unreachable!() };
    Request::ReadWrite(RwRequest { nr_segments, ..r })
}

fn discard(flag: u8, sector: u64, nr_sectors: u64) -> Request {
    Request::Discard(DiscardRequest { flag, handle: 0, id: 5, sector, nr_sectors })
}

fn indirect(op: u8, nr_segments: u16, sector: u64, grefs: &[u32]) -> Request {
    let mut all = [0; 8];
    all[..grefs.len()].copy_from_slice(grefs);
    Request::Indirect(IndirectRequest { op, nr_segments, handle: 0, id: 6, sector, grefs: all })
}

/// Requests, how they end, and whether they reach the disk.
fn table<K: AnyOrder<Req = Request, Rsp = Response>>(setting: &Setting) {
    let mut world = World::new(setting.back, figures());
    let mut front = RawFront::<K>::connect(&mut world, 8);
    let g = front.refs[0].0;
    let list = front.refs[7].0;
    // A list of twelve whole pages (named again and again), and behind it one that is wrong.
    let good = Segment { gref: g, first_sect: 0, last_sect: 7 };
    let mut entries: Vec<u8> = (0..12).flat_map(|_| good.to_bytes()).collect();
    entries.extend(Segment { first_sect: 5, last_sect: 4, ..good }.to_bytes());
    assert!(front.pages.copy_in(7 * 4096, &entries));
    let end = SECTORS;
    let bad = 0xffff_fff0;
    let cases: &[(Request, i16, usize)] = &[
        (rw(OP_READ, 0, &[(g, 0, 7)]), RSP_OKAY, 1),
        (rw(OP_WRITE, end - 8, &[(g, 0, 7)]), RSP_OKAY, 1),
        (rw(OP_READ, end - 1, &[(g, 7, 7)]), RSP_OKAY, 1),
        (rw(OP_READ, 0, &[(g, 0, 0); 11]), RSP_OKAY, 1),
        // Segments out of their page, or that end before they begin.
        (rw(OP_READ, 0, &[(g, 0, 8)]), RSP_ERROR, 0),
        (rw(OP_READ, 0, &[(g, 255, 255)]), RSP_ERROR, 0),
        (rw(OP_WRITE, 0, &[(g, 4, 3)]), RSP_ERROR, 0),
        (rw(OP_WRITE, 0, &[(g, 0, 7), (g, 1, 0)]), RSP_ERROR, 0),
        // Past the end, from the first sector, in the middle, by wrapping.
        (rw(OP_READ, end, &[(g, 0, 0)]), RSP_ERROR, 0),
        (rw(OP_WRITE, end - 7, &[(g, 0, 7)]), RSP_ERROR, 0),
        (rw(OP_WRITE, u64::MAX, &[(g, 0, 0)]), RSP_ERROR, 0),
        (rw(OP_READ, u64::MAX - 7, &[(g, 0, 7)]), RSP_ERROR, 0),
        (rw(OP_READ, 1 << 63, &[(g, 0, 7)]), RSP_ERROR, 0),
        // No segments, and more than a slot has.
        (rw(OP_READ, 0, &[]), RSP_ERROR, 0),
        (rw(OP_WRITE, 0, &[]), RSP_ERROR, 0),
        (too_many(OP_READ, 12), RSP_ERROR, 0),
        (too_many(OP_WRITE, 255), RSP_ERROR, 0),
        (too_many(OP_FLUSH_DISKCACHE, 12), RSP_ERROR, 0),
        // Pages that are not granted: copies and maps that fail never reach the disk as writes.
        (rw(OP_WRITE, 0, &[(g, 0, 7), (bad, 0, 7), (g, 0, 7)]), RSP_ERROR, 0),
        (rw(OP_WRITE, 0, &[(0, 0, 7)]), RSP_ERROR, 0),
        // Flushes and barriers, with data and without.
        (rw(OP_FLUSH_DISKCACHE, u64::MAX, &[]), RSP_OKAY, 1),
        (rw(OP_FLUSH_DISKCACHE, 8, &[(g, 0, 7)]), RSP_OKAY, 3),
        (rw(OP_WRITE_BARRIER, u64::MAX, &[]), RSP_OKAY, 1),
        (rw(OP_WRITE_BARRIER, 8, &[(g, 0, 7)]), RSP_OKAY, 3),
        (rw(OP_WRITE_BARRIER, end, &[(g, 0, 7)]), RSP_ERROR, 0),
        // Discards.
        (discard(0, 0, end), RSP_OKAY, 1),
        (discard(0, 0, 0), RSP_ERROR, 0),
        (discard(0, 1, end), RSP_ERROR, 0),
        (discard(0, 8, u64::MAX - 7), RSP_ERROR, 0),
        (discard(0, u64::MAX, u64::MAX), RSP_ERROR, 0),
        (discard(DISCARD_SECURE, 0, 8), RSP_EOPNOTSUPP, 0),
        // Lists.
        (indirect(OP_READ, 12, 0, &[list]), RSP_OKAY, 1),
        (indirect(OP_WRITE, 12, end - 96, &[list]), RSP_OKAY, 1),
        (indirect(OP_WRITE, 12, end - 95, &[list]), RSP_ERROR, 0),
        (indirect(OP_WRITE, 13, 0, &[list]), RSP_ERROR, 0),
        (indirect(OP_READ, 0, 0, &[list]), RSP_ERROR, 0),
        (indirect(OP_READ, 257, 0, &[list]), RSP_ERROR, 0),
        (indirect(OP_READ, u16::MAX, 0, &[list]), RSP_ERROR, 0),
        (indirect(OP_READ, 1, 0, &[bad]), RSP_ERROR, 0),
        (indirect(OP_FLUSH_DISKCACHE, 12, 0, &[list]), RSP_ERROR, 0),
        (indirect(OP_WRITE_BARRIER, 12, 0, &[list]), RSP_ERROR, 0),
        (indirect(6, 12, 0, &[list]), RSP_ERROR, 0),
        // Operations that there are not.
        (Request::Other { op: 4, id: 1 }, RSP_EOPNOTSUPP, 0),
        (Request::Other { op: 7, id: u64::MAX }, RSP_EOPNOTSUPP, 0),
        (Request::Other { op: 255, id: 3 }, RSP_EOPNOTSUPP, 0),
    ];
    for (req, status, received) in cases {
        world.disk.log();
        let was = world.xen.counts().mapped;
        assert_eq!(front.ask(&mut world, req), *status, "{setting:?} {req:?}");
        assert_eq!(world.disk.log().len(), *received, "{req:?}");
        if setting.path != PathName::Persistent {
            assert_eq!(world.xen.counts().mapped, was, "{req:?}");
        }
    }
    let counts = world.back.shares()[0].counters.read();
    assert_eq!(counts.answers, cases.len() as u64);
    assert_eq!(counts.unsupported, 4);
    front.end(world);
}

#[test]
fn each_request_is_answered_as_it_deserves() {
    for path in PathName::ALL {
        table::<Blkif64>(&Setting::of(path, Abi::X86_64));
        table::<Blkif32>(&Setting::of(path, Abi::X86_32));
    }
}

#[test]
fn large_sectors_are_whole() {
    let large = DiskFigures { sector_size: 4096, physical_sector_size: 4096, ..figures() };
    for path in PathName::ALL {
        let config = VbdConfig { native_sectors: true, ..Setting::of(path, Abi::X86_64).back };
        let mut world = World::new(config, large);
        let mut front = RawFront::<Blkif64>::connect(&mut world, 2);
        let g = front.refs[0].0;
        for (req, status) in [
            (rw(OP_WRITE, 8, &[(g, 0, 7)]), RSP_OKAY),
            (rw(OP_WRITE, 4, &[(g, 0, 7)]), RSP_ERROR),
            (rw(OP_READ, 8, &[(g, 0, 3)]), RSP_ERROR),
            (rw(OP_READ, 8, &[(g, 0, 3), (g, 4, 7)]), RSP_ERROR),
            (discard(0, 8, 16), RSP_OKAY),
            (discard(0, 8, 12), RSP_ERROR),
        ] {
            assert_eq!(front.ask(&mut world, &req), status, "{req:?}");
        }
        front.end(world);
    }
}

#[test]
fn nothing_is_written_to_a_disk_that_is_read() {
    let read_only = DiskFigures { read_only: true, ..figures() };
    let mut world = World::new(VbdConfig::default(), read_only);
    let mut front = RawFront::<Blkif64>::connect(&mut world, 2);
    let g = front.refs[0].0;
    for (req, status) in [
        (rw(OP_READ, 8, &[(g, 0, 7)]), RSP_OKAY),
        (rw(OP_WRITE, 8, &[(g, 0, 7)]), RSP_ERROR),
        (rw(OP_WRITE_BARRIER, 8, &[(g, 0, 7)]), RSP_EOPNOTSUPP),
        (rw(OP_WRITE_BARRIER, 0, &[]), RSP_EOPNOTSUPP),
        (rw(OP_FLUSH_DISKCACHE, 8, &[(g, 0, 7)]), RSP_ERROR),
        (discard(0, 8, 8), RSP_EOPNOTSUPP),
        (rw(OP_FLUSH_DISKCACHE, 0, &[]), RSP_OKAY),
    ] {
        assert_eq!(front.ask(&mut world, &req), status, "{req:?}");
    }
    let received = world.disk.log();
    assert!(received.iter().all(|(op, ..)| matches!(op, IoOp::Read | IoOp::Flush)), "{received:?}");
    front.end(world);
}

#[test]
fn a_disk_that_fails_is_an_answer_and_no_more() {
    for path in PathName::ALL {
        let mut world = World::new(Setting::of(path, Abi::X86_64).back, figures());
        let mut front = RawFront::<Blkif64>::connect(&mut world, 2);
        let g = front.refs[0].0;
        assert!(front.pages.copy_in(0, &[0xee; 4096]));
        let all =
            [rw(OP_READ, 8, &[(g, 0, 7)]), rw(OP_WRITE, 8, &[(g, 0, 7)]), rw(OP_FLUSH_DISKCACHE, 0, &[])];
        for (e, status) in [(IoError::Failed, RSP_ERROR), (IoError::NotSupported, RSP_EOPNOTSUPP)] {
            world.disk.inside().fails = Some(e);
            for req in &all {
                assert_eq!(front.ask(&mut world, req), status);
            }
        }
        // Bytes that a failed read left in a buffer are undefined.
        let mut page = [0; 4096];
        assert!(front.pages.copy_out(0, &mut page) && page == [0xee; 4096]);
        world.disk.inside().fails = None;
        assert_eq!(front.ask(&mut world, &all[0]), RSP_OKAY);
        front.end(world);
    }
}

#[test]
fn ids_that_are_repeated_are_each_answered() {
    let mut world = World::new(VbdConfig::default(), figures());
    let mut front = RawFront::<Blkif64>::connect(&mut world, 2);
    let req = rw(OP_READ, 8, &[(front.refs[0].0, 0, 7)]);
    world.disk.inside().by_hand = true;
    (0..32).for_each(|_| front.push(&req));
    front.publish();
    world.poll_back();
    assert_eq!(world.disk.inside().waiting(), 32);
    while world.disk.inside().do_one(5) {}
    world.poll_back();
    let answers = front.answers();
    assert_eq!(answers.len(), 32);
    assert!(answers.iter().all(|(rsp, _)| (rsp.id, rsp.status) == (req.id(), RSP_OKAY)));
    front.end(world);
}

#[test]
fn a_barrier_goes_alone_and_in_its_place() {
    let mut world = World::new(VbdConfig::default(), figures());
    let mut front = RawFront::<Blkif64>::connect(&mut world, 2);
    let g = front.refs[0].0;
    world.disk.inside().by_hand = true;
    for (op, sector) in [(OP_WRITE, 0), (OP_WRITE, 8), (OP_WRITE_BARRIER, 16), (OP_WRITE, 24), (OP_READ, 32)]
    {
        front.push(&rw(op, sector, &[(g, 0, 7)]));
    }
    front.publish();
    let mut seen = Vec::new();
    for _ in 0..20 {
        world.poll_back();
        let waiting = world.disk.inside().waiting();
        seen.push((world.disk.log(), waiting));
        world.disk.inside().do_one(0);
    }
    let orders: Vec<_> = seen.iter().flat_map(|(log, _)| log.clone()).collect();
    let (w, f) = (|sector| (IoOp::Write, sector, 8), (IoOp::Flush, 0, 0));
    assert_eq!(orders, [w(0), w(8), f, w(16), f, w(24), (IoOp::Read, 32, 8)]);
    // Both writes were done before the first flush began, and nothing was beside the barrier.
    assert!(seen.iter().filter(|(log, _)| log.contains(&f) || log.contains(&w(16))).all(|(_, n)| *n == 1));
    assert_eq!(front.answers().len(), 5);
    front.end(world);
}

#[test]
fn grants_that_end_in_flight_fail_their_request_alone() {
    let mut world = World::new(Setting::of(PathName::Copy, Abi::X86_64).back, figures());
    let mut front = RawFront::<Blkif64>::connect(&mut world, 2);
    let mut late = [GrantRef::NONE; 1];
    let region = {
        use pregrant::platform::{Access, GrantPool};
        world.guest.alloc(crate::world::HOST, Access::ReadWrite, &mut late).unwrap()
    };
    world.disk.inside().by_hand = true;
    front.push(&rw(OP_READ, 8, &[(late[0].0, 0, 7)]));
    front.push(&rw(OP_READ, 8, &[(front.refs[0].0, 0, 7)]));
    front.publish();
    world.poll_back();
    {
        use pregrant::platform::GrantPool;
        assert!(world.guest.release(region).is_ok(), "a back that copies has nothing mapped");
    }
    while world.disk.inside().do_one(0) {}
    world.poll_back();
    let answers: Vec<i16> = front.answers().iter().map(|(rsp, _)| rsp.status).collect();
    assert_eq!(answers, [RSP_ERROR, RSP_OKAY]);
    front.end(world);
}

/// The steps of a flush with data follow each other as the disk executes them; none waits for
/// another request.
#[test]
fn a_flush_with_data_is_done_in_one_poll_of_a_disk_in_memory() {
    let mut world = World::new(VbdConfig::default(), figures());
    let mut front = RawFront::<Blkif64>::connect(&mut world, 1);
    for op in [OP_FLUSH_DISKCACHE, OP_WRITE_BARRIER] {
        front.push(&front.pages_of(op, 8, &[0]));
        front.publish();
        world.poll_back();
        assert_eq!(front.answers().len(), 1, "{op}");
    }
    // Nor does the end of the queue.
    front.push(&front.pages_of(OP_FLUSH_DISKCACHE, 8, &[0]));
    front.publish();
    world.disk.inside().by_hand = true;
    world.poll_back();
    let host = world.host.clone();
    assert_eq!(world.back.queues()[0].drain(&host, true), 1);
    front.end(world);
}

#[test]
fn a_disk_as_long_as_a_number_can_say_is_discarded() {
    let mut world = World::new(VbdConfig::default(), figures());
    let long = 1 << 60;
    world.disk.inside().figures.sectors = long;
    world.disk.inside().fails = Some(IoError::Failed);
    let mut front = RawFront::<Blkif64>::connect(&mut world, 1);
    assert_eq!(front.ask(&mut world, &discard(0, 0, long)), RSP_ERROR);
    front.end(world);
}
