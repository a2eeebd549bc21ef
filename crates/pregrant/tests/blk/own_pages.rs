//! Requests from the guest's own memory: pages are granted for each request, and only the back
//! copies.
#![cfg(not(miri))]

use crate::hostile_back::Ends;
use crate::world::{GUEST, Setting, World, figures, pattern};
use pregrant::blk::front::{Ask, FrontConfig, FrontStep, FrontVbd, NotAsked, OwnAsk};
use pregrant::blk::path::PathName;
use pregrant::grants::regions::Granting;
use pregrant::platform::local::{LocalDomain, LocalRegion};
use pregrant::platform::{Access, GrantPool, GrantTable, PeerMem, Platform};
use pregrant::ring::{Blkif64, RingKind};
use pregrant::shm::SharedBytes;
use pregrant::wire::blkif::{Abi, OP_READ, OP_WRITE, RSP_OKAY, Request, Response};
use pregrant::{GrantRef, PAGE_SIZE};

type Front = FrontVbd<LocalDomain>;

/// Pages of a ring, and those of a list.
const STANDING: usize = 1;

fn memory(guest: &LocalDomain, pages: usize) -> LocalRegion {
    guest.grants().pages(pages).unwrap()
}

fn world(path: PathName) -> (World, Front) {
    let setting = Setting::of(path, Abi::X86_64);
    let mut world = World::new(setting.back, figures());
    let mut front = world.front(FrontConfig { persistent: false, ..setting.front });
    assert!(front.use_memory(Some(memory(&world.guest, 128))).is_none());
    (world, front)
}

/// Asks, polls until it is answered.
fn ask(world: &mut World, front: &mut Front, ask: &OwnAsk) -> Result<(), NotAsked> {
    front.submit_own(&world.guest, 0, ask, 5)?;
    front.publish(&world.guest, 0);
    for _ in 0..100 {
        world.poll_back();
        let each = |a: pregrant::blk::front::Answer<'_, LocalDomain>| {
            assert_eq!((a.tag, a.outcome), (5, Ok(())));
            let len = if ask.reads { ask.sectors as usize * 512 } else { 0 };
            assert_eq!((a.len(), a.copy_out(&mut [0; 9])), (len, 0), "its bytes are in the memory");
        };
        if front.take(&world.guest, 0, each).expect("an honest back") == 1 {
            return Ok(());
        }
    }
    panic!("no answer")
}

#[test]
fn bytes_come_and_go_where_they_are() {
    for path in [PathName::Copy, PathName::Map] {
        let (mut world, mut front) = world(path);
        let mut random = 1u64;
        // Of a page, over pages, in parts of pages, with a list and without.
        let asks = [(0, 8), (1, 1), (7, 2), (3, 85), (0, 88), (1, 88), (0, 512), (5, 500), (8, 505)];
        for (turn, (at, sectors)) in asks.into_iter().cycle().take(60).enumerate() {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (sector, bytes) = ((random >> 40) % 3000, sectors as usize * 512);
            let data = pattern(bytes, turn as u64);
            let at = at * 512;
            assert!(front.memory().unwrap().copy_in(at, &data));
            let write = OwnAsk { reads: false, sector, sectors, at };
            assert_eq!(ask(&mut world, &mut front, &write), Ok(()), "{write:?}");
            let on_disk = sector as usize * 512;
            assert!(world.disk.inside().cache[on_disk..on_disk + bytes] == data, "{write:?}");
            let to = 64 * PAGE_SIZE - 512 * (turn % 8);
            let around = front.memory().unwrap();
            let mut before = [0; 512];
            assert!(around.copy_in(to - 512, &[9; 512]) && around.copy_out(to - 512, &mut before));
            let read = OwnAsk { reads: true, sector, sectors: sectors.min(64 * 8 - 8), at: to };
            assert_eq!(ask(&mut world, &mut front, &read), Ok(()), "{read:?}");
            let mut came = vec![0; read.sectors as usize * 512];
            let (memory, mut edge) = (front.memory().unwrap(), [0; 512]);
            assert!(memory.copy_out(to, &mut came) && memory.copy_out(to - 512, &mut edge));
            assert!(came == data[..came.len()] && edge == before, "{read:?}");
            assert!(front.is_memory_free());
            assert_eq!(world.xen.counts().grants, STANDING, "all of its grants ended");
            assert_eq!(front.queue_mut(0).unwrap().pages(), 16, "for lists alone");
            // Requests with a copy go beside them.
            let whole = world.ask(&mut front, &Ask::Read { sector, sectors: 1 }).unwrap();
            assert_eq!(whole, (Ok(()), data[..512].to_vec()));
        }
        world.end(front);
    }
}

#[test]
fn what_is_not_in_the_memory_is_not_asked() {
    let (world, mut front) = world(PathName::Map);
    let end = 128 * PAGE_SIZE;
    let wrong = [
        (0, 0),
        (1, 1),
        (256, 8),
        (end, 1),
        (end - 512, 2),
        (usize::MAX - 511, 1),
        (0, u32::MAX),
        (0, 8 * 65),
    ];
    for (at, sectors) in wrong {
        for reads in [false, true] {
            let ask = OwnAsk { reads, sector: 0, sectors, at };
            assert_eq!(front.submit_own(&world.guest, 0, &ask, 1), Err(NotAsked::Length), "{ask:?}");
        }
    }
    let one = OwnAsk { reads: true, sector: 0, sectors: 1, at: 0 };
    assert!(front.use_memory(None).is_some());
    assert!(matches!(front.submit_own(&world.guest, 0, &one, 1), Err(NotAsked::Platform(_))));
    world.end(front);
    // A reference that was seen goes on naming its page.
    let setting = Setting::of(PathName::Persistent, Abi::X86_64);
    let mut world = World::new(setting.back, figures());
    let mut front = world.front(setting.front);
    front.use_memory(Some(memory(&world.guest, 1)));
    assert!(matches!(front.submit_own(&world.guest, 0, &one, 1), Err(NotAsked::Platform(_))));
    world.end(front);
}

#[test]
fn a_grant_that_is_refused_in_the_middle_leaves_nothing_granted() {
    let (mut world, mut front) = world(PathName::Copy);
    let read = OwnAsk { reads: true, sector: 0, sectors: 160, at: 0 };
    // One of 21 is the list's.
    for k in 0..21 {
        world.xen.limit_grants(GUEST, STANDING + k);
        assert!(matches!(ask(&mut world, &mut front, &read), Err(NotAsked::Platform(_))), "{k}");
        assert_eq!((world.xen.counts().grants, front.is_memory_free()), (STANDING, true), "{k}");
    }
    world.xen.limit_grants(GUEST, STANDING + 21);
    assert_eq!(ask(&mut world, &mut front, &read), Ok(()));
    world.end(front);
}

/// The pages of the request at this index of the ring.
fn refs(ends: &Ends, at: u32) -> Vec<GrantRef> {
    let Request::ReadWrite(req) = Blkif64::read_req(&ends.ring, at) else {
        unreachable!("a request of few pages")
    };
    req.segments().unwrap().iter().map(|segment| GrantRef(segment.gref)).collect()
}

/// A back keeps a page mapped: the answer to its request waits, others do not. It is reported once,
/// when the back has unmapped the page.
#[test]
fn an_answer_waits_until_the_back_lets_go() {
    let mut ends = Ends::new(Granting::PerFrame);
    let memory = memory(&ends.guest, 4);
    let at_once = |ends: &mut Ends, reads, at, tag| {
        let ask = OwnAsk { reads, sector: 0, sectors: 12, at };
        ends.front.submit_own(&ends.guest, &mut ends.regions, &memory, &ask, tag).unwrap();
        ends.front.publish(&ends.guest);
    };
    at_once(&mut ends, true, 0, 1);
    at_once(&mut ends, false, 2 * PAGE_SIZE, 2);
    let (read, write) = (refs(&ends, 0), refs(&ends, 1));
    assert_eq!((read.len(), write.len(), ends.front.own_grants()), (2, 2, 4));
    assert!(ends.host.map(GUEST, &write[..1], Access::ReadWrite).is_err(), "it is to be read");
    let kept = ends.host.map(GUEST, &read[1..], Access::ReadWrite).unwrap();
    let okay = |ends: &Ends, at, op| ends.answer(at, Response { id: ends.id(at), op, status: RSP_OKAY });
    okay(&ends, 0, OP_READ);
    okay(&ends, 1, OP_WRITE);
    let room = ends.front.room();
    assert_eq!(ends.take(), Ok(vec![(2, Ok(()))]), "the other one");
    assert_eq!((ends.front.waiting(), ends.front.own_grants(), ends.front.room()), (1, 1, room + 1));
    assert_eq!(ends.take(), Ok(vec![]));
    // Its operation there belongs to the answer, which the guest has not seen yet.
    assert!(kept.copy_in(0, &[7; 512]));
    drop(kept);
    assert_eq!(ends.take(), Ok(vec![(1, Ok(()))]));
    let mut bytes = [0; 512];
    assert!(memory.copy_out(PAGE_SIZE, &mut bytes) && bytes == [7; 512]);
    assert_eq!((ends.front.waiting(), ends.front.own_grants(), ends.front.room()), (0, 0, room + 2));
    assert_eq!(ends.take(), Ok(vec![]), "once");
    // A second answer to one that waits is a fault, as to any that was answered.
    at_once(&mut ends, true, 0, 3);
    let kept = ends.host.map(GUEST, &refs(&ends, 2), Access::ReadWrite).unwrap();
    let id = ends.id(2);
    okay(&ends, 2, OP_READ);
    assert_eq!(ends.take(), Ok(vec![]));
    ends.answer(3, Response { id, op: OP_READ, status: RSP_OKAY });
    assert!(ends.take().is_err());
    assert_eq!(ends.front.unanswered().collect::<Vec<_>>(), [3], "it is reported as lost");
    let Ends { guest, front, ring, xen, mut regions, .. } = ends;
    drop(ring);
    let left = front.end(&guest, &mut regions);
    assert_eq!(left.len(), 2);
    drop(kept);
    left.into_iter().for_each(|gref| guest.grants().revoke(gref).unwrap());
    regions.release(&guest);
    assert_eq!(xen.counts().grants, 0);
}

/// A back that closes with a page mapped: the request is lost, and the disk is not closed before
/// the page is let go of.
#[test]
fn a_disk_is_not_closed_while_a_page_of_the_guest_s_is_used() {
    let (mut world, mut front) = world(PathName::Copy);
    let read = OwnAsk { reads: true, sector: 0, sectors: 8, at: 0 };
    front.submit_own(&world.guest, 0, &read, 9).unwrap();
    front.publish(&world.guest, 0);
    // The only grant beside the ring's.
    let gref = GrantRef(GrantRef::FIRST_FREE.0 + 1);
    let kept = world.host.map(GUEST, &[gref], Access::ReadWrite).unwrap();
    world.back.close(&world.host, &mut world.back_bus, None).unwrap();
    assert_eq!(front.step(&world.guest, &mut world.front_bus).unwrap(), FrontStep::Closed);
    assert_eq!(front.take_lost(), [9]);
    for _ in 0..4 {
        world.step_back().unwrap();
        front.step(&world.guest, &mut world.front_bus).unwrap();
    }
    assert!(!front.is_closed() && !front.is_memory_free() && front.awaits_release());
    assert_eq!(front.state(), pregrant::xenbus::XenbusState::Closed);
    drop(kept);
    front.step(&world.guest, &mut world.front_bus).unwrap();
    assert!(front.is_closed() && front.is_memory_free());
    let memory = front.use_memory(None).expect("the guest's");
    assert!(world.guest.grants().release(memory).is_ok());
    drop(front);
    world.assert_empty();
}
