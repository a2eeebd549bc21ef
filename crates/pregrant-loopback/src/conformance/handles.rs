//! Tests several handles of one domain, each on its own thread: what can move between handles, and
//! what cannot.

use super::stage::{
    Case, CaseStatus, Chan, Machine, SETTLED, bound, ensure, fail, fired, fired_within, pattern, pending,
    read, region, release,
};
use pregrant::platform::{Access, Events, PeerMem, Platform};
use pregrant::{EvtchnPort, PAGE_SIZE};
use std::sync::mpsc;
use std::thread;

pub(super) fn own_events<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let other = back.another().map_err(fail)?;
    ensure!(other.domid() == back.domid(), "another handle of {} is of {}", back.domid(), other.domid());
    let (near, remote, _) = bound(&front, &back)?;
    let (other_near, other_remote, _) = bound(&front, &other)?;
    front.events().notify(&near);
    ensure!(fired(&back) == [back.events().local(&remote)], "the first handle's end did not fire");
    ensure!(
        fired_within(&other, SETTLED).is_empty(),
        "the other handle gets an event of the first one's end"
    );
    front.events().notify(&other_near);
    ensure!(fired(&other) == [other.events().local(&other_remote)], "the other handle's end did not fire");
    ensure!(pending(&back).is_empty(), "the first handle gets an event of the other one's end");
    // The mapping outlives the handle that made it.
    drop((remote, back));
    other.events().unmask(&other_remote);
    front.events().notify(&other_near);
    ensure!(fired(&other) == [other.events().local(&other_remote)], "the end went with another handle");
    Ok(())
}

pub(super) fn adopt<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (near, mut remote, _) = bound(&front, &back)?;
    let other = back.another().map_err(fail)?;
    // Move it there and back, then to another thread.
    for round in 0..3 {
        if round == 2 {
            front.events().notify(&near); // as they part
        }
        remote = other.events().adopt(remote).map_err(fail)?;
        ensure!(fired(&other) == [other.events().local(&remote)], "no event after the adoption");
        other.events().unmask(&remote);
        front_and_back_are_notified(&front, &near, &other, &remote)?;
        // The old handle may still report one event from before the channel was closed.
        ensure!(pending(&back).is_empty() || round == 2, "the old handle still gets its event");
        ensure!(pending(&back).is_empty(), "the old handle gets its event again and again");
        remote = back.events().adopt(remote).map_err(fail)?;
        ensure!(fired(&back) == [back.events().local(&remote)], "no event after the adoption by the first");
        back.events().unmask(&remote);
        front_and_back_are_notified(&front, &near, &back, &remote)?;
        ensure!(pending(&other).is_empty(), "the other handle still gets its event");
    }
    let moved = thread::scope(|scope| {
        let remote = scope.spawn(move || -> Result<_, CaseStatus> {
            let remote = other.events().adopt(remote).map_err(fail)?;
            ensure!(
                fired(&other) == [other.events().local(&remote)],
                "no event after the adoption by a thread"
            );
            other.events().unmask(&remote);
            Ok((other, remote))
        });
        remote.join().unwrap_or_else(|_| Err(fail("the thread panicked")))
    });
    let (other, remote) = moved?;
    front_and_back_are_notified(&front, &near, &other, &remote)?;
    ensure!(fired_within(&back, SETTLED).is_empty(), "the old handle gets events of what a thread took over");
    drop(back);
    front_and_back_are_notified(&front, &near, &other, &remote)
}

/// Checks that each end can notify the other once.
fn front_and_back_are_notified<F: Platform, B: Platform>(
    front: &F,
    near: &Chan<F>,
    back: &B,
    remote: &Chan<B>,
) -> Case {
    front.events().notify(near);
    ensure!(fired(back) == [back.events().local(remote)], "the front's event does not come");
    back.events().unmask(remote);
    back.events().notify(remote);
    ensure!(fired(front) == [front.events().local(near)], "the back's event does not come");
    front.events().unmask(near);
    Ok(())
}

pub(super) fn offered_stays<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let other = front.another().map_err(fail)?;
    let (near, port): (_, EvtchnPort) = front.events().offer(back.domid()).map_err(fail)?;
    ensure!(other.events().adopt(near).is_err(), "an end that was offered moved");
    ensure!(back.events().bind(front.domid(), port).is_err(), "it is offered still");
    Ok(())
}

/// Number of maps that move from one thread to the other.
const MAPS: usize = 400;

/// One thread maps four pages again and again, and reads and unmaps some of the maps itself. The
/// other thread unmaps the rest as they arrive, through its own handle or by dropping them, while
/// the first maps the same pages again.
pub(super) fn maps_move<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let other = back.another().map_err(fail)?;
    let (region, refs) = region(&front, back.domid(), Access::ReadWrite, 4)?;
    let of = front.domid();
    let map_some = |by: &M::Back, i: usize| {
        let list = &refs[i % 2..2 + i % 3];
        by.peer().map(of, list, Access::ReadWrite).map_err(|e| fail(format!("map {i}: {e:?}")))
    };
    let shows = |map: &_, i: usize| {
        ensure!(read(map, 0, PAGE_SIZE) == pattern(i % 2), "map {i} shows other bytes");
        Ok(())
    };
    let there = thread::scope(|scope| {
        let (give, take) = mpsc::sync_channel(1);
        let there = scope.spawn(move || -> Result<M::Back, CaseStatus> {
            for (i, map) in take.iter().enumerate() {
                shows(&map, i)?;
                if i % 2 == 0 {
                    other.peer().unmap(&mut vec![map, map_some(&other, i + 1)?]);
                }
            }
            Ok(other)
        });
        for i in 0..MAPS {
            // The other thread ends early only if it fails.
            let gone = give.send(map_some(&back, i)?).is_err();
            let own = map_some(&back, i)?;
            shows(&own, i)?;
            back.peer().unmap(&mut vec![own]);
            if gone {
                break;
            }
        }
        drop(give);
        there.join().unwrap_or_else(|_| Err(fail("the thread panicked")))
    });
    let other = there?;
    // A dropped map is counted by the handle that made it.
    let (here, there) = (back.peer().grant_ops(), other.peer().grant_ops());
    let pages = |i: usize| (2 + i % 3 - i % 2) as u64;
    let unmapped_there: u64 = (0..MAPS).step_by(2).map(pages).sum();
    ensure!(
        there.unmaps == there.maps + unmapped_there && here.maps == here.unmaps + unmapped_there,
        "{here:?} and, of the other handle, {there:?}, with {unmapped_there} pages that it got"
    );
    drop(back);
    let map = map_some(&other, 0)?;
    shows(&map, 0)?;
    other.peer().unmap(&mut vec![map]);
    release(&front, region)
}
