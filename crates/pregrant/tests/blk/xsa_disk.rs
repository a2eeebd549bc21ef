//! Xen's advisories on block drivers that concern a back like ours; the number is in each test's
//! name (docs/protocol 9).
#![cfg(not(miri))]

use crate::raw_front::RawFront;
use crate::world::{Setting, World, figures};
use pregrant::PeerFault;
use pregrant::blk::disk::IoOp;
use pregrant::blk::front::FrontStep;
use pregrant::blk::path::PathName;
use pregrant::ring::{AnyOrder, Blkif32, Blkif64, RingMem, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::blkif::{
    Abi, IndirectRequest, OP_READ, OP_WRITE, RSP_ERROR, RSP_OKAY, Request, Response, Segment,
};
use pregrant::xenbus::BackDevice;
use std::sync::atomic::{AtomicBool, Ordering};

fn settings() -> impl Iterator<Item = Setting> {
    PathName::ALL.into_iter().map(|path| Setting::of(path, Abi::X86_64))
}

#[test]
fn xsa_39_an_index_that_jumps_closes_the_disk_and_leaks_nothing() {
    for setting in settings() {
        for jump in [33, 1000, u32::MAX, 1 << 31] {
            let mut world = World::new(setting.back, figures());
            let mut front = RawFront::<Blkif64>::connect(&mut world, 4);
            world.disk.inside().by_hand = true;
            front.push(&front.pages_of(OP_READ, 0, &[0, 1]));
            front.publish();
            world.poll_back();
            front.mem.store(Word::ReqProd, front.req_prod.wrapping_add(jump));
            let host = world.host.clone();
            let fault = world.back.queues()[0].poll(&host);
            assert!(matches!(fault, Err(PeerFault::ReqProdOverrun { .. })), "{jump}");
            front.end_after(world, |world| {
                world.back.close(&host, &mut world.back_bus, Some("it lied")).unwrap();
            });
        }
    }
}

/// Ends a thread, also where the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn xsa_155_a_list_that_changes_while_it_is_read_is_validated_as_it_was_read() {
    for setting in settings() {
        let mut world = World::new(setting.back, figures());
        let mut front = RawFront::<Blkif64>::connect(&mut world, 14);
        let good = |gref: u32| Segment { gref, first_sect: 0, last_sect: 7 };
        let entries: Vec<u8> = (0..12).flat_map(|k| good(front.refs[k].0).to_bytes()).collect();
        assert!(front.pages.copy_in(13 * 4096, &entries));
        let over = AtomicBool::new(false);
        let list = front.pages.clone();
        let (mut okay, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut k = 0u32;
                while !over.load(Ordering::Relaxed) {
                    // Sectors of one entry: whole, wrong, longer than a page.
                    let sectors = [7 << 8, 1, 200 << 8][k as usize % 3];
                    assert!(list.store_u32(13 * 4096 + 8 * (k as usize % 12) + 4, sectors));
                    // On a machine with one processor no one would ever see it, did it not sleep
                    // here too.
                    if k.is_multiple_of(64) {
                        std::thread::yield_now();
                    }
                    assert!(list.store_u32(13 * 4096 + 8 * (k as usize % 12) + 4, 7 << 8));
                    k += 1;
                    // Mostly it sleeps while the list is right.
                    std::thread::yield_now();
                }
            });
            let ends = Ends(&over);
            // A writer that sleeps may have left the list wrong: it goes on some time.
            let mut n = 0u64;
            while n < 2000 || (okay == 0 || refused == 0) && n < 1_000_000 {
                let mut grefs = [0; 8];
                grefs[0] = front.refs[13].0;
                let op = if n.is_multiple_of(2) { OP_READ } else { OP_WRITE };
                let req = IndirectRequest { op, nr_segments: 12, handle: 0, id: n, sector: n % 2000, grefs };
                // The model disk asserts that each order is as long as its sectors say, and on the
                // disk.
                match front.ask(&mut world, &Request::Indirect(req)) {
                    RSP_OKAY => okay += 1,
                    RSP_ERROR => refused += 1,
                    other => panic!("status {other}"),
                }
                n += 1;
                if okay == 0 || refused == 0 {
                    std::thread::yield_now();
                }
            }
            drop(ends);
        });
        assert!(okay > 0 && refused > 0, "{okay} were right, {refused} were not: nothing raced");
        front.end(world);
    }
}

/// The ring's page is granted to the back, so a request can name it as its data: the disk then
/// overwrites the ring, which must not change any request that was taken.
#[test]
fn xsa_155_197_a_disk_that_writes_over_its_guest_s_ring_changes_no_request_that_was_taken() {
    for setting in settings() {
        let mut world = World::new(setting.back, figures());
        let mut front = RawFront::<Blkif64>::connect(&mut world, 8);
        let own_ring = |front: &RawFront<_>, op, sector| {
            let Request::ReadWrite(mut req) = front.pages_of(op, sector, &[0]) else { unreachable!() };
            req.seg[0].gref = front.ring_ref.0;
            Request::ReadWrite(req)
        };
        // To the disk: bytes as any, a slot among them, whose begin has the answer since.
        let req = own_ring(&front, OP_WRITE, 64);
        assert_eq!(front.ask(&mut world, &req), RSP_OKAY);
        let mut slot = [0; 112];
        assert!(front.ring().copy_out(64, &mut slot));
        assert!(world.disk.inside().cache[64 * 512 + 64..][16..112] == slot[16..]);

        // From the disk: each index is wrong then, and each slot behind this one a request
        // for what no disk has.
        world.disk.inside().cache[..4096].fill(0xff);
        world.disk.log();
        front.push(&own_ring(&front, OP_READ, 0));
        for page in 0..8 {
            front.push(&front.pages_of(OP_READ, 128 + 8 * page as u64, &[page]));
        }
        front.publish();
        world.poll_back();
        let asked = (0..8).map(|page| (IoOp::Read, 128 + 8 * page, 8));
        assert!(world.disk.log().into_iter().eq([(IoOp::Read, 0, 8)].into_iter().chain(asked)));
        let answers = front.answers();
        assert!(answers.len() == 9 && answers.iter().all(|(rsp, _)| rsp.status == RSP_OKAY), "{answers:?}");
        let host = world.host.clone();
        let fault = world.back.queues()[0].poll(&host);
        assert!(matches!(fault, Err(PeerFault::ReqProdOverrun { req_prod: u32::MAX, .. })), "{fault:?}");
        front.end_after(world, |world| {
            world.back.close(&host, &mut world.back_bus, Some("it lied")).unwrap();
        });
    }
}

fn pads<K: AnyOrder<Req = Request, Rsp = Response>>(setting: &Setting) {
    let mut world = World::new(setting.back, figures());
    let mut front = RawFront::<K>::connect(&mut world, 4);
    // Slots that are all ones but for what must be right.
    for k in 0..32 {
        let mut req = Request::Other { op: 0xff, id: u64::MAX };
        if k % 2 == 0 {
            req = front.pages_of(OP_READ, 0, &[0]);
        }
        front.push(&req);
        if k % 2 == 1 {
            front.mem.write::<20>(k, [u32::MAX; 20]);
        }
    }
    front.publish();
    world.poll_back();
    let answers = front.answers();
    assert_eq!(answers.len(), 32);
    for (rsp, words) in answers {
        assert_eq!(words[2], u32::from(rsp.op) | u32::from(rsp.status as u16) << 16, "{words:x?}");
        if K::SLOT_WORDS == Abi::X86_64.slot_words() {
            assert_eq!(words[3], 0, "{words:x?}");
        }
    }
    front.end(world);
}

#[test]
fn xsa_216_pads_of_answers_are_zero() {
    pads::<Blkif64>(&Setting::of(PathName::Copy, Abi::X86_64));
    pads::<Blkif32>(&Setting::of(PathName::Copy, Abi::X86_32));
}

#[test]
fn xsa_229_neighbours_in_a_request_are_not_merged() {
    for setting in settings() {
        let mut world = World::new(setting.back, figures());
        let mut front = RawFront::<Blkif64>::connect(&mut world, 11);
        for page in 0..11u8 {
            assert!(front.pages.copy_in(usize::from(page) * 4096, &[page; 4096]));
        }
        for order in [[3, 4, 5, 0, 1, 9, 8, 7, 2, 6, 10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [5; 11]] {
            world.disk.inside().pieces.clear();
            let req = front.pages_of(OP_WRITE, 16, &order);
            assert_eq!(front.ask(&mut world, &req), RSP_OKAY);
            let disk = world.disk.inside();
            let wrote = disk.cache[16 * 512..].chunks(4096).take(11);
            assert!(wrote.zip(order).all(|(bytes, page)| bytes == [page as u8; 4096]), "{order:?}");
            if setting.path != PathName::Copy {
                assert_eq!(disk.pieces, [11]);
            }
        }
        front.end(world);
    }
}

#[test]
fn xsa_300_what_a_guest_has_mapped_or_copied_is_bounded() {
    for setting in settings() {
        let mut back = setting.back;
        (back.parts_in_flight, back.persistent_pages) = (300, 20);
        let mut world = World::new(back, figures());
        let mut front = RawFront::<Blkif64>::connect(&mut world, 256);
        world.disk.inside().by_hand = true;
        let entries: Vec<u8> = front.refs[1..]
            .iter()
            .flat_map(|gref| Segment { gref: gref.0, first_sect: 0, last_sect: 7 }.to_bytes())
            .collect();
        assert!(front.pages.copy_in(0, &entries));
        let mut grefs = [0; 8];
        grefs[0] = front.refs[0].0;
        for id in 0..32 {
            let req = IndirectRequest { op: OP_READ, nr_segments: 255, handle: 0, id, sector: 0, grefs };
            front.push(&Request::Indirect(req));
        }
        front.publish();
        let mut answers = 0;
        let kept = if setting.path == PathName::Persistent { 20 } else { 0 };
        let most = world.back.pages().needed + kept;
        for _ in 0..200 {
            world.poll_back();
            let disk = world.disk.inside().waiting();
            assert!(disk <= 1, "{disk} requests of 255 parts; one fits");
            assert!(world.xen.counts().most_mapped <= most, "{} of {most}", world.xen.counts().most_mapped);
            world.disk.inside().do_one(0);
            answers += front.answers().len();
        }
        assert_eq!(answers, 32);
        front.end(world);
    }
}

/// Only the last page cannot be mapped: until that is found, the number of mapped pages is limited,
/// and so is the work of one poll.
#[test]
fn xsa_300_requests_that_fail_late_are_bounded() {
    for setting in settings() {
        let mut back = setting.back;
        (back.parts_in_flight, back.persistent_pages) = (300, 20);
        let mut world = World::new(back, figures());
        let mut front = RawFront::<Blkif64>::connect(&mut world, 256);
        let good = front.refs[1..256].iter().map(|gref| gref.0);
        let entries: Vec<u8> = good
            .chain([0xffff])
            .flat_map(|gref| Segment { gref, first_sect: 0, last_sect: 7 }.to_bytes())
            .collect();
        assert!(front.pages.copy_in(0, &entries));
        let mut grefs = [0; 8];
        grefs[0] = front.refs[0].0;
        for id in 0..32 {
            let op = if id % 2 == 0 { OP_READ } else { OP_WRITE };
            let req = IndirectRequest { op, nr_segments: 256, handle: 0, id, sector: 0, grefs };
            front.push(&Request::Indirect(req));
        }
        front.publish();
        let kept = if setting.path == PathName::Persistent { 20 } else { 0 };
        let most = world.back.pages().needed + kept;
        let mut answers = Vec::new();
        for _ in 0..64 {
            let before = world.xen.counts();
            world.poll_back();
            let after = world.xen.counts();
            assert!(after.most_mapped <= most, "{:?}: {} of {most}", setting.path, after.most_mapped);
            assert!(after.since(&before).maps <= 256, "{:?}: {after:?}", setting.path);
            answers.extend(front.answers());
        }
        assert_eq!(answers.len(), 32);
        if setting.path != PathName::Copy {
            assert!(answers.iter().all(|(rsp, _)| rsp.status == RSP_ERROR));
        }
        front.end(world);
    }
}

/// A list is refused for its last entry, after all of it was copied and checked: a poll processes
/// only few such lists, like any long ones.
#[test]
fn xsa_300_lists_that_are_refused_at_their_end_are_bounded() {
    for setting in settings() {
        let mut world = World::new(setting.back, figures());
        let mut front = RawFront::<Blkif64>::connect(&mut world, 256);
        // One that says that it ends before it begins.
        let wrong = Segment { gref: front.refs[1].0, first_sect: 5, last_sect: 4 };
        let good =
            front.refs[1..256].iter().map(|gref| Segment { gref: gref.0, first_sect: 0, last_sect: 7 });
        let entries: Vec<u8> = good.chain([wrong]).flat_map(|segment| segment.to_bytes()).collect();
        assert!(front.pages.copy_in(0, &entries));
        // And one whose pages are not to be had.
        for grefs in [[front.refs[0].0; 8], [0xffff; 8]] {
            for id in 0..32 {
                let req = IndirectRequest { op: OP_WRITE, nr_segments: 256, handle: 0, id, sector: 0, grefs };
                front.push(&Request::Indirect(req));
            }
            front.publish();
            for answered in 1..=32 {
                world.poll_back();
                let answers = front.answers();
                assert_eq!(answers.len(), 1, "{:?}: in poll {answered}", setting.path);
                assert_eq!(answers[0].0.status, RSP_ERROR);
            }
        }
        let counts = world.back.shares()[0].counters.read();
        assert_eq!((counts.refused, counts.failed), (32, 32));
        front.end(world);
    }
}

#[test]
fn xsa_350_states_that_toggle_leave_nothing() {
    for setting in settings() {
        let mut world = World::new(setting.back, figures());
        let mut front = pregrant::blk::front::FrontVbd::new(crate::world::HOST, setting.front, true);
        world.xen.stop_clock(0);
        for turn in 0..100u64 {
            world.xen.stop_clock(turn * 1_000_000_000);
            assert!(world.connect(&mut front).contains(&FrontStep::Live), "turn {turn}");
            // With requests that no one has answered.
            let ask = pregrant::blk::front::Ask::Write { sector: turn, bytes: &[turn as u8; 8192] };
            front.submit(&world.guest, 0, &ask, turn).unwrap();
            front.publish(&world.guest, 0);
            if turn % 2 == 0 {
                world.poll_back();
            }
            world.back.close(&world.host, &mut world.back_bus, None).unwrap();
            assert_eq!(world.xen.counts().mapped, 0);
            front.step(&world.guest, &mut world.front_bus).unwrap();
            assert_eq!(front.take_lost(), [turn]);
        }
        front.close(&mut world.front_bus, None).unwrap();
        world.connect(&mut front);
        assert!(front.is_closed());
        world.assert_empty();
    }
}

#[test]
fn xsa_361_the_map_that_fails_fails_its_own_request() {
    for setting in settings() {
        let mut world = World::new(setting.back, figures());
        let mut front = RawFront::<Blkif64>::connect(&mut world, 11);
        for bad in 0..11 {
            let Request::ReadWrite(mut req) =
                front.pages_of(OP_WRITE, 16, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
            else {
                unreachable!()
            };
            let good = req;
            req.seg[bad].gref = 0xffff;
            front.push(&Request::ReadWrite(good));
            front.push(&Request::ReadWrite(req));
            front.push(&Request::ReadWrite(good));
            front.publish();
            for _ in 0..3 {
                world.poll_back();
            }
            let mut answers: Vec<i16> = front.answers().iter().map(|(rsp, _)| rsp.status).collect();
            answers.sort_unstable();
            assert_eq!(answers, [RSP_ERROR, RSP_OKAY, RSP_OKAY], "{setting:?} {bad}");
        }
        front.end(world);
    }
}

#[test]
fn xsa_371_nothing_stays_mapped_after_errors() {
    for setting in settings() {
        let mut world = World::new(setting.back, figures());
        let mut front = RawFront::<Blkif64>::connect(&mut world, 8);
        world.disk.inside().fails = Some(pregrant::blk::disk::IoError::Failed);
        for k in 0..100 {
            let req =
                front.pages_of(if k % 2 == 0 { OP_READ } else { OP_WRITE }, k * 8, &[0, 1, k as usize % 8]);
            assert_eq!(front.ask(&mut world, &req), RSP_ERROR);
        }
        front.end(world);
    }
}

/// A queue that found a fault, with requests at its disk, and its device closed after that, each
/// twice.
#[test]
fn xsa_374_a_fault_and_a_disconnect_of_a_disk_twice_over() {
    for setting in settings() {
        let mut world = World::new(setting.back, figures());
        let mut front = RawFront::<Blkif64>::connect(&mut world, 4);
        world.disk.inside().by_hand = true;
        world.disk.lands_at_end(0b01);
        front.push(&front.pages_of(OP_WRITE, 0, &[0, 1]));
        front.push(&front.pages_of(OP_READ, 16, &[2]));
        front.publish();
        world.poll_back();
        front.mem.store(Word::ReqProd, front.req_prod.wrapping_add(1000));
        let host = world.host.clone();
        for _ in 0..2 {
            assert!(world.back.queues()[0].poll(&host).is_err());
        }
        assert_eq!(world.disk.inside().waiting(), 2);
        for _ in 0..2 {
            world.back.close(&host, &mut world.back_bus, Some("a fault")).unwrap();
            assert_eq!((world.back.queues().len(), world.xen.counts().mapped), (0, 0));
        }
        // It stays closed as long as the front says 4.
        assert_eq!(world.step_back().unwrap(), pregrant::xenbus::back::BackStep::Waiting);
        assert!(front.answers().is_empty());
        front.end_after(world, |_| ());
    }
}
