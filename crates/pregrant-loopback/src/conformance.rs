//! The duties of every platform, as one suite: it runs on the loopback here, and on real Xen where
//! there is one.
//!
//! ```text
//!   Machine::pair -> front's Platform, back's Platform (both in this thread) -> one case -> Ok | Skip | Fail
//! ```
//!
//! Each case starts with a fresh pair and leaves nothing granted, mapped or bound. Where platforms
//! may differ (Xen answers `general_error` where the loopback is more precise) a case asks only for
//! "not okay".

use pregrant::platform::{
    Access, Clock, CopyOp, Events, GrantPool, InUse, LocalBytes, PeerMem, Platform, ReadySet,
};
use pregrant::shm::SharedBytes;
use pregrant::wire::grant::GrantStatus;
use pregrant::{DomId, EvtchnPort, GrantRef, PAGE_SIZE};
use stage::{
    Case, SETTLED, bound, ensure, fail, fired, fired_within, op, pattern, pending, read, region, release,
};
use std::time::Duration;

mod batches;
mod handles;
mod stage;

pub use stage::{CaseStatus, Machine, Outcome};

/// Runs all cases and returns the outcome of each.
pub fn run<M: Machine>(machine: &M) -> Vec<Outcome> {
    let case = |name, run: fn(&M) -> Case| {
        let status = match run(machine) {
            Ok(()) => CaseStatus::Ok,
            Err(status) => status,
        };
        Outcome { name, status }
    };
    let maps = |name, run: fn(&M) -> Case| match machine.cannot_map() {
        Some(why) => Outcome { name, status: CaseStatus::Skip(why) },
        None => case(name, run),
    };
    vec![
        case("a granted region is zeroed, and zeroed again when it is used again", zeroed),
        maps("a mapping shows the front's bytes, and the front the back's", map_both_ways),
        maps("a read-only mapping shows the front's bytes", map_read_only),
        case("a read-only grant is not mapped or copied to for writing", read_only_refuses),
        maps("a list is mapped in its order, also backwards and with a page twice", map_in_order),
        maps("a list is mapped as a whole or not at all", map_all_or_nothing),
        maps("many mappings end in one batch", unmap_batch),
        case("a domain is mapped as a whole, where one can be", map_whole),
        case("copies fetch pieces of any size, few and many", copy_from),
        case("copies deliver pieces of any size, few and many", copy_to),
        case("one batch uses a grant again and again", copy_same_gref),
        maps("a grant is copied while it is mapped", copy_beside_a_map),
        case("a bad piece in a batch fails alone", copy_statuses),
        case("an empty piece is okay whatever its grant", copy_empty),
        case("batches with bytes of their own fetch together, and fail each for itself", batches::fetch),
        case(
            "batches with bytes of their own deliver together, also beside one that fetches",
            batches::deliver,
        ),
        case(
            "copies fetch to a burst buffer and deliver from one, in pieces that cross its pages",
            batches::by_burst_buffer,
        ),
        case("another domain's grant is refused", wrong_domain),
        case("a domain that does not exist is refused", no_domain),
        case("a revoked grant is refused", revoked),
        maps("a grant in use is not revoked, and is after its unmap", revoke_while_mapped),
        case("frames are granted and revoked one by one", per_frame),
        case("a bound channel has one event pending at once", bind_pends),
        case("events go both ways and coalesce", notify_both_ways),
        case("an event is masked until it is unmasked", masking),
        case("a wait without events ends in time", wait_times_out),
        case("only the domain that was offered a channel binds to it, once", bind_refused),
        case("a closed end can be bound to again", rebind),
        case("another handle gets events of its own ends alone", handles::own_events),
        case("a bound end goes to another handle and back, with an event pending", handles::adopt),
        case("an end that was offered stays with its handle", handles::offered_stays),
        maps("a map is read and unmapped on another handle's thread", handles::maps_move),
        case("the clock runs", clock_runs),
    ]
}

fn zeroed<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    for round in 0..3 {
        let mut refs = [GrantRef::NONE; 5];
        let region = front.grants().alloc(back.domid(), Access::ReadWrite, &mut refs).map_err(fail)?;
        ensure!(region.len() == 5 * PAGE_SIZE, "5 pages have {} bytes", region.len());
        ensure!(
            (region.base().as_ptr() as usize).is_multiple_of(PAGE_SIZE),
            "the region is not page aligned"
        );
        ensure!(refs.iter().all(|r| r.0 >= GrantRef::FIRST_FREE.0), "a reserved reference in {refs:?}");
        ensure!(read(&region, 0, region.len()).iter().all(|b| *b == 0), "old bytes in round {round}");
        ensure!(region.copy_in(0, &vec![0xA5; region.len()]), "the region cannot be written");
        release(&front, region)?;
    }
    Ok(())
}

fn map_both_ways<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (region, refs) = region(&front, back.domid(), Access::ReadWrite, 3)?;
    let map = back.peer().map(front.domid(), &refs, Access::ReadWrite).map_err(|e| fail(format!("{e:?}")))?;
    ensure!(map.len() == 3 * PAGE_SIZE, "3 pages mapped as {} bytes", map.len());
    for page in 0..3 {
        ensure!(read(&map, page * PAGE_SIZE, PAGE_SIZE) == pattern(page), "page {page} shows other bytes");
    }
    ensure!(map.copy_in(2 * PAGE_SIZE + 100, b"from the back"), "the mapping cannot be written");
    ensure!(
        read(&region, 2 * PAGE_SIZE + 100, 13) == b"from the back",
        "the front does not see the back's bytes"
    );
    back.peer().unmap(&mut vec![map]);
    release(&front, region)
}

fn map_whole<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (region, _) = region(&front, back.domid(), Access::ReadOnly, 3)?;
    let before = back.peer().grant_ops();
    let whole = back.peer().whole(front.domid());
    let (first, whole) = match (front.grants().first_frame(&region), whole) {
        (Some(first), Ok(whole)) => (first as usize * PAGE_SIZE, whole),
        (None, Err(_)) => {
            release(&front, region)?;
            return Err(CaseStatus::Skip("domains are kept apart: none can be mapped as a whole"));
        }
        (first, whole) => {
            ensure!(false, "frames are numbered: {}, and mapped: {}", first.is_some(), whole.is_ok());
            return Ok(());
        }
    };
    ensure!(whole.len() >= first + region.len(), "{} bytes of a domain with a page behind them", whole.len());
    for page in 0..3 {
        let at = first + page * PAGE_SIZE;
        ensure!(read(&whole, at, PAGE_SIZE) == pattern(page), "page {page} shows other bytes");
    }
    ensure!(whole.copy_in(first + 100, b"from the back"), "the domain cannot be written");
    ensure!(read(&region, 100, 13) == b"from the back", "the front does not see the back's bytes");
    let end = whole.len();
    ensure!(!whole.copy_out(end - 3, &mut [0; 4]), "there are bytes behind the domain's last");
    let another = back.peer().whole(front.domid()).map_err(fail)?;
    ensure!(read(&another, first + 100, 13) == b"from the back", "another map shows other bytes");
    drop(another);
    back.peer().unmap(&mut vec![whole]);
    ensure!(back.peer().grant_ops() == before, "grant operations were counted");
    ensure!(back.peer().whole(DomId(0x7EEE)).is_err(), "a domain that is not there was mapped");
    release(&front, region)
}

fn map_read_only<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    for granted in [Access::ReadOnly, Access::ReadWrite] {
        let (region, refs) = region(&front, back.domid(), granted, 2)?;
        let map =
            back.peer().map(front.domid(), &refs, Access::ReadOnly).map_err(|e| fail(format!("{e:?}")))?;
        ensure!(read(&map, PAGE_SIZE, PAGE_SIZE) == pattern(1), "the page shows other bytes");
        ensure!(region.copy_in(PAGE_SIZE, b"later"), "the region cannot be written");
        ensure!(read(&map, PAGE_SIZE, 5) == b"later", "the mapping is not the page itself");
        // A read-only mapping refuses every kind of store, also when the page was granted writable.
        ensure!(!map.is_writable() && map.load_u32(0).is_some(), "a mapping to be read is none");
        ensure!(
            !map.copy_in(PAGE_SIZE, b"never") && !map.store_u32(0, 1),
            "a mapping to be read was written"
        );
        ensure!(map.word(0).is_none(), "a mapping to be read has words to write");
        let piece = region.piece(0, 5).is_some_and(|from| map.copy_piece_in(PAGE_SIZE, from));
        map.zero();
        ensure!(!piece && read(&map, PAGE_SIZE, 5) == b"later", "a mapping to be read was written");
        drop(map);
        release(&front, region)?;
    }
    Ok(())
}

fn read_only_refuses<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (region, refs) = region(&front, back.domid(), Access::ReadOnly, 1)?;
    let map = back.peer().map(front.domid(), &refs, Access::ReadWrite);
    ensure!(map.is_err(), "a read-only grant was mapped for writing");
    for n in [1, 20] {
        let mut ops = vec![op(refs[0], 0, 4, 0); n];
        back.peer().copy(front.domid(), LocalBytes::ToPeer(b"evil"), &mut ops).map_err(fail)?;
        ensure!(ops.iter().all(|o| !o.status.is_okay()), "a read-only grant was written to");
        let mut bytes = [0; 4];
        back.peer().copy(front.domid(), LocalBytes::FromPeer(&mut bytes), &mut ops).map_err(fail)?;
        ensure!(
            ops.iter().all(|o| o.status.is_okay()),
            "a read-only grant cannot be read: {}",
            ops[0].status
        );
        ensure!(bytes == pattern(0)[..4], "bytes changed or others were read");
    }
    release(&front, region)
}

fn map_in_order<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (region, refs) = region(&front, back.domid(), Access::ReadWrite, 40)?;
    let orders: [Vec<usize>; 4] =
        [(0..40).rev().collect(), vec![7, 7, 7], (0..40).step_by(3).collect(), vec![3, 4, 5, 20, 21, 1]];
    for order in orders {
        let list: Vec<GrantRef> = order.iter().map(|page| refs[*page]).collect();
        let map =
            back.peer().map(front.domid(), &list, Access::ReadWrite).map_err(|e| fail(format!("{e:?}")))?;
        for (at, page) in order.iter().enumerate() {
            ensure!(
                read(&map, at * PAGE_SIZE, PAGE_SIZE) == pattern(*page),
                "entry {at} of {order:?} is wrong"
            );
        }
        // While the whole list is mapped, map and unmap one of its pages by itself.
        let single = back
            .peer()
            .map(front.domid(), &list[..1], Access::ReadWrite)
            .map_err(|e| fail(format!("{e:?}")))?;
        drop(single);
        ensure!(read(&map, 0, PAGE_SIZE) == pattern(order[0]), "the page went with its second mapping");
    }
    release(&front, region)
}

fn map_all_or_nothing<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    for n in [1, 4, 40] {
        let (region, refs) = region(&front, back.domid(), Access::ReadWrite, n)?;
        for k in 0..n {
            let mut list = refs.clone();
            list[k] = GrantRef(u32::MAX);
            match back.peer().map(front.domid(), &list, Access::ReadWrite) {
                Ok(_) => return Err(fail(format!("a list with a bad reference at {k} was mapped"))),
                Err(e) => {
                    ensure!(!e.status.is_okay(), "the failure says okay");
                    ensure!(e.index.is_none_or(|i| i == k), "the failure names entry {:?}, not {k}", e.index);
                }
            }
        }
        // This would fail if any of the other pages were still mapped.
        release(&front, region)?;
    }
    Ok(())
}

fn unmap_batch<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (region, refs) = region(&front, back.domid(), Access::ReadWrite, 70)?;
    for _ in 0..2 {
        let mut maps = Vec::new();
        for pages in refs.chunks(3) {
            maps.push(
                back.peer()
                    .map(front.domid(), pages, Access::ReadWrite)
                    .map_err(|e| fail(format!("{e:?}")))?,
            );
        }
        for (i, map) in maps.iter().enumerate() {
            ensure!(read(map, 0, PAGE_SIZE) == pattern(i * 3), "mapping {i} shows other bytes");
        }
        back.peer().unmap(&mut maps);
        ensure!(maps.is_empty(), "unmap left {} mappings", maps.len());
    }
    release(&front, region)
}

/// Returns copy operations with odd sizes and offsets, each a tuple of page, offset and length.
fn pieces(n: usize) -> Vec<(usize, usize, usize)> {
    (0..n).map(|i| (i % 11, i * 37 % 2000, if i % 7 == 6 { 1500 } else { 1 + i * 13 % 300 })).collect()
}

fn copy_from<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (region, refs) = region(&front, back.domid(), Access::ReadOnly, 11)?;
    for n in [1, 2, 7, 8, 9, 64, 1025, 2100] {
        let mut wanted = Vec::new();
        let mut ops = Vec::new();
        for (page, offset, len) in pieces(n) {
            ops.push(op(refs[page], offset, len, wanted.len()));
            wanted.extend_from_slice(&pattern(page)[offset..offset + len]);
            // Leave gaps between some operations and none between others.
            wanted.resize(wanted.len() + n % 2 * 3, 0xEE);
        }
        let mut got = vec![0xEE; wanted.len()];
        back.peer().copy(front.domid(), LocalBytes::FromPeer(&mut got), &mut ops).map_err(fail)?;
        ensure!(ops.iter().all(|o| o.status.is_okay()), "of {n} pieces some failed");
        ensure!(got == wanted, "{n} pieces brought other bytes");
    }
    release(&front, region)
}

fn copy_to<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    for n in [1, 7, 8, 11] {
        let (region, refs) = region(&front, back.domid(), Access::ReadWrite, 11)?;
        let bytes: Vec<u8> = pattern(99).repeat(5);
        let mut ops = Vec::new();
        let mut wanted: Vec<Vec<u8>> = (0..11).map(pattern).collect();
        let mut at = 0;
        for (page, offset, len) in pieces(n) {
            ops.push(op(refs[page], offset, len, at));
            wanted[page][offset..offset + len].copy_from_slice(&bytes[at..at + len]);
            at += len;
        }
        back.peer().copy(front.domid(), LocalBytes::ToPeer(&bytes), &mut ops).map_err(fail)?;
        ensure!(ops.iter().all(|o| o.status.is_okay()), "of {n} pieces some failed");
        for (page, wanted) in wanted.iter().enumerate() {
            ensure!(
                read(&region, page * PAGE_SIZE, PAGE_SIZE) == *wanted,
                "{n} pieces: page {page} is wrong"
            );
        }
        release(&front, region)?;
    }
    Ok(())
}

fn copy_same_gref<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (region, refs) = region(&front, back.domid(), Access::ReadWrite, 2)?;
    // Some operations are adjacent and some are not.
    let mut ops: Vec<CopyOp> = (0..60).map(|i| op(refs[i / 3 % 2], i * 8, 8, i * 8)).collect();
    let mut got = [0; 480];
    back.peer().copy(front.domid(), LocalBytes::FromPeer(&mut got), &mut ops).map_err(fail)?;
    for (i, o) in ops.iter().enumerate() {
        ensure!(o.status.is_okay(), "piece {i}: {}", o.status);
        ensure!(
            got[i * 8..i * 8 + 8] == pattern(i / 3 % 2)[i * 8..i * 8 + 8],
            "piece {i} brought other bytes"
        );
    }
    release(&front, region)
}

/// Checks that a copy through a grant that is also mapped leaves the grant in use.
fn copy_beside_a_map<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (region, refs) = region(&front, back.domid(), Access::ReadWrite, 2)?;
    let mut ops: Vec<CopyOp> = (0..60).map(|i| op(refs[i / 3 % 2], i * 8, 8, i * 8)).collect();
    let map =
        back.peer().map(front.domid(), &refs[..1], Access::ReadOnly).map_err(|e| fail(format!("{e:?}")))?;
    for local in [LocalBytes::FromPeer(&mut [0; 480]), LocalBytes::ToPeer(&[0; 480])] {
        back.peer().copy(front.domid(), local, &mut ops).map_err(fail)?;
        ensure!(ops.iter().all(|o| o.status.is_okay()), "a mapped grant cannot be copied");
    }
    let kept = still_in_use(&front, back.domid(), region, &map)?;
    drop(map);
    kept.map_or(Ok(()), |region| release(&front, region))
}

/// Releases a region while `map` still maps one of its pages. Either the release is refused, or the
/// platform keeps the pages back (as Linux's gntalloc does), and no one else gets them. The mapping
/// must show the same bytes as before.
fn still_in_use<F: Platform>(
    front: &F,
    to: DomId,
    region: <F::Grants as GrantPool>::Region,
    map: &impl SharedBytes,
) -> Result<Option<<F::Grants as GrantPool>::Region>, CaseStatus> {
    let before = read(map, 0, PAGE_SIZE);
    let kept = match front.grants().release(region) {
        Err(InUse(region)) => Some(region),
        Ok(()) => {
            let mut refs = [GrantRef::NONE; 64];
            let other = front.grants().alloc(to, Access::ReadWrite, &mut refs).map_err(fail)?;
            ensure!(other.copy_in(0, &vec![0x5A; other.len()]), "64 pages cannot be written");
            release(front, other)?;
            None
        }
    };
    ensure!(read(map, 0, PAGE_SIZE) == before, "a page was reused though it is still mapped");
    Ok(kept)
}

fn copy_statuses<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (region, refs) = region(&front, back.domid(), Access::ReadWrite, 2)?;
    for n in [3, 30] {
        let mut ops: Vec<CopyOp> = (0..n).map(|i| op(refs[i % 2], i * 10, 10, i * 10)).collect();
        let mut got = vec![0; n * 10];
        ops[1].gref = GrantRef(u32::MAX);
        if n > 3 {
            ops[10].gref = GrantRef::NONE;
            ops[11] = op(refs[0], 4090, 7, 110);
            ops[12] = op(refs[0], 0, 10, n * 10 - 9);
            ops[13] = op(refs[0], usize::from(u16::MAX), usize::from(u16::MAX), 0);
        }
        back.peer().copy(front.domid(), LocalBytes::FromPeer(&mut got), &mut ops).map_err(fail)?;
        for (i, o) in ops.iter().enumerate() {
            let bad = i == 1 || (10..14).contains(&i);
            ensure!(o.status.is_okay() != bad, "piece {i} of {n}: {}", o.status);
            let wanted = if bad { vec![0; 10] } else { pattern(i % 2)[i * 10..i * 10 + 10].to_vec() };
            ensure!(
                got[i * 10..i * 10 + 10] == wanted,
                "piece {i} of {n} brought {:?}",
                &got[i * 10..i * 10 + 10]
            );
        }
        if n > 3 {
            let args = [ops[11].status, ops[12].status, ops[13].status];
            ensure!(
                args == [GrantStatus::BAD_COPY_ARG; 3],
                "pieces outside of their page or bytes: {args:?}"
            );
        }
    }
    release(&front, region)
}

fn copy_empty<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let mut ops = [op(GrantRef(u32::MAX), 0, 0, 0), op(GrantRef::NONE, PAGE_SIZE, 0, 0)];
    back.peer().copy(front.domid(), LocalBytes::FromPeer(&mut []), &mut ops).map_err(fail)?;
    ensure!(ops.iter().all(|o| o.status.is_okay()), "{} and {}", ops[0].status, ops[1].status);
    back.peer().copy(front.domid(), LocalBytes::FromPeer(&mut []), &mut []).map_err(fail)
}

fn wrong_domain<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let other = DomId(if back.domid().0 == 1 { 2 } else { 1 });
    let (region, refs) = region(&front, other, Access::ReadWrite, 1)?;
    let map = back.peer().map(front.domid(), &refs, Access::ReadOnly);
    ensure!(map.is_err(), "a grant for {other} was mapped by {}", back.domid());
    for n in [1, 10] {
        let mut ops = vec![op(refs[0], 0, 4, 0); n];
        let mut bytes = [0; 4];
        back.peer().copy(front.domid(), LocalBytes::FromPeer(&mut bytes), &mut ops).map_err(fail)?;
        ensure!(
            ops.iter().all(|o| !o.status.is_okay()),
            "a grant for {other} was copied by {}",
            back.domid()
        );
        ensure!(bytes == [0; 4], "its bytes came all the same");
    }
    release(&front, region)
}

fn no_domain<M: Machine>(m: &M) -> Case {
    let (_front, back) = m.pair();
    let absent = DomId(0x7000);
    ensure!(back.peer().map(absent, &[GrantRef(8)], Access::ReadOnly).is_err(), "mapped from {absent}");
    let mut ops = [op(GrantRef(8), 0, 4, 0)];
    let copied = back.peer().copy(absent, LocalBytes::FromPeer(&mut [0; 4]), &mut ops);
    ensure!(copied.is_err() || !ops[0].status.is_okay(), "copied from {absent}");
    ensure!(back.events().bind(absent, EvtchnPort(1)).is_err(), "bound to {absent}");
    Ok(())
}

fn revoked<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (region, refs) = region(&front, back.domid(), Access::ReadWrite, 2)?;
    let mut ops = [op(refs[0], 0, 4, 0), op(refs[1], 0, 4, 0)];
    let mut copy = || {
        back.peer()
            .copy(front.domid(), LocalBytes::FromPeer(&mut [0; 4]), &mut ops)
            .map_err(fail)
            .map(|()| ops)
    };
    // Also before the revocation: where both ends are one domain, the grants that the back makes
    // for its own first copy must not reuse these references.
    ensure!(copy()?.iter().all(|o| o.status.is_okay()), "a standing grant was not copied");
    release(&front, region)?;
    ensure!(back.peer().map(front.domid(), &refs, Access::ReadOnly).is_err(), "a revoked grant was mapped");
    ensure!(copy()?.iter().all(|o| !o.status.is_okay()), "a revoked grant was copied");
    Ok(())
}

fn revoke_while_mapped<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    for acc in [Access::ReadOnly, Access::ReadWrite] {
        let (region, refs) = region(&front, back.domid(), Access::ReadWrite, 3)?;
        let map = back.peer().map(front.domid(), &refs[1..2], acc).map_err(|e| fail(format!("{e:?}")))?;
        let again = back.peer().map(front.domid(), &refs[1..2], acc).map_err(|e| fail(format!("{e:?}")))?;
        let kept = still_in_use(&front, back.domid(), region, &map)?;
        drop(map);
        let kept = match kept {
            Some(region) => still_in_use(&front, back.domid(), region, &again)?,
            None => None,
        };
        back.peer().unmap(&mut vec![again]);
        if let Some(region) = kept {
            release(&front, region)?;
        }
    }
    Ok(())
}

fn per_frame<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let Some(table) = front.grants().per_frame() else {
        return Err(CaseStatus::Skip("an allocation is the grant here"));
    };
    let own = table.pages(4).map_err(fail)?;
    ensure!(own.copy_in(2 * PAGE_SIZE, b"frame 2"), "the pages cannot be written");
    for _ in 0..200 {
        let gref = table.grant(back.domid(), &own, 2, Access::ReadOnly).map_err(fail)?;
        let mut bytes = [0; 7];
        let mut ops = [op(gref, 0, 7, 0)];
        back.peer().copy(front.domid(), LocalBytes::FromPeer(&mut bytes), &mut ops).map_err(fail)?;
        ensure!(ops[0].status.is_okay() && &bytes == b"frame 2", "{}: {bytes:?}", ops[0].status);
        let map =
            back.peer().map(front.domid(), &[gref], Access::ReadOnly).map_err(|e| fail(format!("{e:?}")))?;
        ensure!(table.revoke(gref).is_err(), "a mapped frame was revoked");
        drop(map);
        ensure!(table.revoke(gref).is_ok(), "an unmapped frame cannot be revoked");
        back.peer().copy(front.domid(), LocalBytes::FromPeer(&mut bytes), &mut ops).map_err(fail)?;
        ensure!(!ops[0].status.is_okay(), "a revoked frame was copied");
    }
    let gref = table.grant(back.domid(), &own, 0, Access::ReadWrite).map_err(fail)?;
    let Err(InUse(own)) = front.grants().release(own) else {
        return Err(fail("pages were freed while one of them is granted"));
    };
    ensure!(table.revoke(gref).is_ok(), "the frame cannot be revoked");
    release(&front, own)
}

fn bind_pends<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (near, port) = front.events().offer(back.domid()).map_err(fail)?;
    ensure!(front.events().local(&near) == port, "the offered number is not the end's own");
    let remote = back.events().bind(front.domid(), port).map_err(fail)?;
    ensure!(fired(&back) == [back.events().local(&remote)], "no event after the binding");
    Ok(())
}

fn notify_both_ways<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (near, remote, _) = bound(&front, &back)?;
    for _ in 0..3 {
        for _ in 0..5 {
            front.events().notify(&near);
        }
        ensure!(fired(&back) == [back.events().local(&remote)], "the back's end did not fire once");
        // The first event may have been handled before the last was sent. Events that came while it
        // was masked count as one more, which may come later.
        let mut times = 1;
        loop {
            back.events().unmask(&remote);
            if fired_within(&back, SETTLED).is_empty() {
                break;
            }
            times += 1;
            ensure!(times <= 2, "five events that were sent at once came {times} times and more");
        }
        back.events().notify(&remote);
        ensure!(fired(&front) == [front.events().local(&near)], "the front's end did not fire once");
        front.events().unmask(&near);
    }
    let (other, other_remote, _) = bound(&front, &back)?;
    front.events().notify(&other);
    ensure!(fired(&back) == [back.events().local(&other_remote)], "another channel's end fired");
    Ok(())
}

fn masking<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (near, remote, _) = bound(&front, &back)?;
    front.events().notify(&near);
    ensure!(!fired(&back).is_empty(), "the end did not fire");
    front.events().notify(&near);
    ensure!(pending(&back).is_empty(), "a masked end fired");
    back.events().unmask(&remote);
    ensure!(fired(&back) == [back.events().local(&remote)], "an event that came while masked was lost");
    back.events().unmask(&remote);
    ensure!(pending(&back).is_empty(), "an event came twice");
    Ok(())
}

fn wait_times_out<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (_near, _remote, _) = bound(&front, &back)?;
    for max in [Duration::ZERO, Duration::from_millis(5)] {
        let before = front.clock().now_ns();
        let mut ready = ReadySet { ports: vec![EvtchnPort(77)], ..ReadySet::default() };
        front.events().wait(&mut ready, Some(max));
        ensure!(ready.ports.is_empty(), "{:?} fired without a notify", ready.ports);
        let took = front.clock().now_ns() - before;
        ensure!(u128::from(took) >= max.as_nanos(), "a wait of {max:?} ended after {took} ns");
    }
    Ok(())
}

fn bind_refused<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    ensure!(
        back.events().bind(front.domid(), EvtchnPort(4000)).is_err(),
        "bound to an end that was not offered"
    );
    ensure!(back.events().bind(front.domid(), EvtchnPort(u32::MAX)).is_err(), "bound to an impossible end");
    let (near, _remote, port) = bound(&front, &back)?;
    ensure!(back.events().bind(front.domid(), port).is_err(), "bound to the same end twice");
    drop(near);
    let other = DomId(if back.domid().0 == 1 { 2 } else { 1 });
    let (_near, port) = front.events().offer(other).map_err(fail)?;
    ensure!(back.events().bind(front.domid(), port).is_err(), "bound to an end that was offered to {other}");
    Ok(())
}

fn rebind<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (near, remote, port) = bound(&front, &back)?;
    drop(remote);
    front.events().notify(&near);
    let remote = back
        .events()
        .bind(front.domid(), port)
        .map_err(|e| fail(format!("the end cannot be bound again: {e}")))?;
    ensure!(fired(&back) == [back.events().local(&remote)], "no event after the second binding");
    back.events().unmask(&remote);
    drop((remote, back));
    front.events().notify(&near);
    let Some(back) = m.successor() else {
        return Err(CaseStatus::Skip("no successor of a backend here; the end was bound again by the first"));
    };
    let remote =
        back.events().bind(front.domid(), port).map_err(|e| fail(format!("a successor cannot bind: {e}")))?;
    ensure!(fired(&back) == [back.events().local(&remote)], "no event after the successor's binding");
    back.events().unmask(&remote);
    front.events().notify(&near);
    ensure!(fired(&back) == [back.events().local(&remote)], "the successor gets no event of the front");
    back.events().notify(&remote);
    ensure!(fired(&front) == [front.events().local(&near)], "the front gets no event of the successor");
    Ok(())
}

fn clock_runs<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let first = front.clock().now_ns();
    std::thread::sleep(Duration::from_millis(2));
    let second = back.clock().now_ns();
    ensure!(second >= first + 2_000_000, "{first} ns, and 2 ms later {second} ns");
    Ok(())
}
