//! Several handles of one domain on the local platform: which handle gets events and maps, and what
//! can move from one to another.
#![cfg(not(loom))]

use pregrant::platform::local::{LocalDomain, LocalXen};
use pregrant::platform::{Access, Events, GrantPool, PeerMem, Platform, ReadySet};
use pregrant::shm::SharedBytes;
use pregrant::{EvtchnPort, GrantRef};
use std::thread;
use std::time::Duration;

fn fired(p: &LocalDomain, max: Option<Duration>) -> Vec<EvtchnPort> {
    let mut ready = ReadySet::default();
    p.events().wait(&mut ready, max);
    ready.ports
}

#[test]
fn a_bound_end_goes_to_a_handle_of_another_thread() {
    let xen = LocalXen::new();
    let (front, back) = (xen.domain(5), xen.domain(0));
    let other = back.another().unwrap();
    let (near, port) = front.events().offer(back.domid()).unwrap();
    let remote = back.events().bind(front.domid(), port).unwrap();
    assert_eq!(
        fired(&other, Some(Duration::ZERO)),
        [],
        "the other gets an event of an end that the first bound"
    );
    assert_eq!(fired(&back, None), [back.local(&remote)]);
    // Masked, and with an event on its way.
    front.notify(&near);
    let (other, remote) = thread::spawn(move || {
        let remote = other.events().adopt(remote).unwrap();
        assert_eq!(fired(&other, None), [other.local(&remote)], "the event is pending");
        other.unmask(&remote);
        (other, remote)
    })
    .join()
    .unwrap();
    front.notify(&near);
    assert_eq!(fired(&back, Some(Duration::ZERO)), [], "the old handle gets its event");
    assert_eq!(fired(&other, None), [other.local(&remote)]);
    other.notify(&remote);
    assert_eq!(fired(&front, None), [port]);
    assert_eq!(xen.counts().channels, 2);
    let refused = other.events().adopt(near).err().unwrap();
    assert!(refused.op.contains("offered, not bound"), "{refused}");
}

#[test]
fn a_map_is_used_and_unmapped_by_another_thread() {
    let xen = LocalXen::new();
    let (front, back) = (xen.domain(5), xen.domain(0));
    let mut refs = [GrantRef::NONE; 2];
    let region = front.alloc(back.domid(), Access::ReadWrite, &mut refs).unwrap();
    let map = back.map(front.domid(), &refs, Access::ReadWrite).unwrap();
    let other = back.another().unwrap();
    thread::spawn(move || {
        assert!(map.store_u32(4096, 7));
        other.peer().unmap(&mut vec![map]);
    })
    .join()
    .unwrap();
    assert_eq!(region.load_u32(4096), Some(7));
    assert!(front.release(region).is_ok(), "still mapped");
}
