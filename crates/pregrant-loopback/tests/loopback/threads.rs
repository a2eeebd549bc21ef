//! Threads as domains: workers of one domain that use the same grants, and sleeping threads that
//! are woken.

use pregrant::platform::{Access, CopyOp, Events, GrantPool, InUse, LocalBytes, PeerMem, Platform, ReadySet};
use pregrant::shm::SharedBytes;
use pregrant::wire::grant::GrantStatus;
use pregrant::{DomId, EvtchnPort, GrantRef};
use pregrant_host::wake::WakeOn;
use pregrant_loopback::{Audit, Broker, Channel, DomainSpec, GrantTableVersion, Hooks, Loopback, PeerMap};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const BACK: DomId = DomId(0);
const GUEST: DomId = DomId(5);

fn broker() -> Broker {
    broker_with(GrantTableVersion::V1)
}

fn broker_with(table: GrantTableVersion) -> Broker {
    let broker = Broker::start(None, Hooks::default()).unwrap();
    broker.use_grant_tables(table);
    broker.create_domain(DomainSpec::driver(BACK)).unwrap();
    broker.create_domain(DomainSpec::guest(GUEST)).unwrap();
    broker
}

/// Waits until the broker's account is `wanted`; it notices an end in its own time.
fn settles(broker: &Broker, wanted: Audit) {
    let mut rounds = 0;
    while broker.audit() != wanted {
        rounds += 1;
        assert!(rounds < 20_000, "left: {:?}, wanted: {wanted:?}", broker.audit());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Two workers copy from and map the same four pages, in different orders, and a third comes and
/// goes: no copy fails, no page is ever free for the front meanwhile, and nothing stays in use.
#[test]
fn xsa_406_workers_share_grants() {
    GrantTableVersion::ALL.into_iter().for_each(workers_share_grants);
}

fn workers_share_grants(version: GrantTableVersion) {
    let rounds = if version == GrantTableVersion::V1 { 3000 } else { 1000 };
    let broker = broker_with(version);
    let front = broker.attach(GUEST).unwrap();
    let mut refs = [GrantRef::NONE; 4];
    let region = front.grants().alloc(BACK, Access::ReadWrite, &mut refs).unwrap();
    for page in 0..4 {
        assert!(region.copy_in(page * 4096, &[page as u8 + 1; 64]));
    }
    // Mapped from here to the end, so that the front must never get the region back.
    let holder = broker.attach(BACK).unwrap();
    let held = holder.peer().map(GUEST, &refs, Access::ReadOnly).unwrap();
    let done = AtomicBool::new(false);
    let region = std::thread::scope(|scope| {
        let mut region = region;
        let worker = |seed: usize| {
            let back = broker.attach(BACK).unwrap();
            let mut maps = Vec::new();
            for round in 0..rounds {
                let page = |i: usize| (i * seed + round) % 4;
                let mut ops: Vec<CopyOp> = (0..12)
                    .map(|i| CopyOp {
                        gref: refs[page(i)],
                        offset: 0,
                        len: 64,
                        at: i as u32 * 64,
                        status: GrantStatus::GENERAL_ERROR,
                    })
                    .collect();
                let mut bytes = [0; 12 * 64];
                back.peer().copy(GUEST, LocalBytes::FromPeer(&mut bytes), &mut ops).unwrap();
                for (i, op) in ops.iter().enumerate() {
                    assert!(op.status.is_okay(), "round {round}: {}", op.status);
                    assert_eq!(bytes[i * 64..i * 64 + 64], [page(i) as u8 + 1; 64]);
                }
                let acc = if round % 2 == 0 { Access::ReadOnly } else { Access::ReadWrite };
                maps.push(back.peer().map(GUEST, &[refs[page(0)]], acc).unwrap());
                assert_eq!(
                    maps.last().unwrap().load_u32(0),
                    Some(u32::from_ne_bytes([page(0) as u8 + 1; 4]))
                );
                if round % 5 == 0 {
                    back.peer().unmap(&mut maps);
                }
            }
        };
        let workers = [scope.spawn(move || worker(1)), scope.spawn(move || worker(3))];
        let visitor = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let back = broker.attach(BACK).unwrap();
                let _map = back.peer().map(GUEST, &refs, Access::ReadWrite).unwrap();
            }
        });
        while !workers.iter().all(|w| w.is_finished()) {
            region = match front.grants().release(region) {
                Ok(()) => panic!("the region was released while it is mapped"),
                Err(InUse(region)) => region,
            };
            std::thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
        for thread in workers.into_iter().chain([visitor]) {
            thread.join().unwrap();
        }
        region
    });
    assert!(
        matches!(front.grants().release(region), Err(InUse(_))),
        "the holder's mapping went with the others"
    );
    // Dropped while it is in use, it is granted until the next look; of version 2 not even that.
    let grants = if version == GrantTableVersion::V1 { 4 } else { 0 };
    assert_eq!(broker.audit().grants, grants);
    drop((held, holder));
    settles(&broker, Audit { domains: 2, attachments: 1, grants, ..Audit::default() });
    // The region that came back from the failed release, and was dropped, is free at the next
    // allocation.
    let DomainSpec { pages, grant_frames, .. } = DomainSpec::guest(GUEST);
    let all = front.grants().per_frame().unwrap().pages(pages - grant_frames as usize).unwrap();
    drop((all, front));
    settles(&broker, Audit { domains: 1, ..Audit::default() });
}

/// Ping-pong between sleepers, over several channels.
#[test]
fn sleepers_are_woken_each_time() {
    const ROUNDS: usize = 5000;
    let broker = broker();
    let front = broker.attach(GUEST).unwrap();
    let offered: Vec<_> = (0..3).map(|_| front.events().offer(BACK).unwrap()).collect();
    let ports: Vec<EvtchnPort> = offered.iter().map(|(_, port)| *port).collect();
    std::thread::scope(|scope| {
        let (bound, is_bound) = mpsc::channel();
        let broker = &broker;
        scope.spawn(move || {
            let back = broker.attach(BACK).unwrap();
            let chans: Vec<_> = ports.iter().map(|port| back.events().bind(GUEST, *port).unwrap()).collect();
            let mut ready = ReadySet::default();
            back.events().wait(&mut ready, None);
            assert_eq!(ready.ports.len(), 3, "each binding leaves an event");
            chans.iter().for_each(|chan| back.events().unmask(chan));
            bound.send(()).unwrap();
            let mut received = 0;
            while received < ROUNDS {
                back.events().wait(&mut ready, None);
                for port in &ready.ports {
                    let chan = chans.iter().find(|c| back.events().local(c) == *port).unwrap();
                    back.events().unmask(chan);
                    back.events().notify(chan);
                    received += 1;
                }
            }
        });
        is_bound.recv().unwrap();
        let mut ready = ReadySet::default();
        for round in 0..ROUNDS {
            let (chan, port) = &offered[round % 3];
            front.events().notify(chan);
            front.events().wait(&mut ready, None);
            assert_eq!(ready.ports, [*port]);
            front.events().unmask(chan);
        }
    });
    let counters = front.counters();
    assert_eq!(counters.notifications, ROUNDS as u64);
    drop((offered, front));
    settles(&broker, Audit { domains: 1, ..Audit::default() });
}

/// While no thread sleeps no system call is made; and the cost of a batch is counted.
#[test]
fn operations_are_counted_and_cost_the_system_calls_that_they_must() {
    let broker = broker();
    let front = broker.attach(GUEST).unwrap();
    let back = broker.attach(BACK).unwrap();
    let (near, port) = front.events().offer(BACK).unwrap();
    let remote = back.events().bind(GUEST, port).unwrap();
    let mut ready = ReadySet::default();
    let before = front.counters();
    for _ in 0..10 {
        front.events().notify(&near);
        back.events().wait(&mut ready, Some(Duration::ZERO));
        assert_eq!(ready.ports, [back.events().local(&remote)]);
        back.events().unmask(&remote);
    }
    let sent = front.counters().since(&before);
    assert_eq!((sent.notifications, sent.wakeups, sent.syscalls), (10, 0, 0));
    assert_eq!(back.counters().syscalls, 0, "polling makes no system call");

    let mut refs = [GrantRef::NONE; 64];
    let region = front.grants().alloc(BACK, Access::ReadWrite, &mut refs).unwrap();
    let piece = |(i, gref): (usize, &GrantRef)| CopyOp {
        gref: *gref,
        offset: 8,
        len: 64,
        at: i as u32 * 64,
        status: GrantStatus::GENERAL_ERROR,
    };
    let mut ops: Vec<CopyOp> = refs.iter().enumerate().map(piece).collect();
    let before = back.counters();
    back.peer().copy(GUEST, LocalBytes::FromPeer(&mut [0; 4096]), &mut ops).unwrap();
    let one_call = back.counters().since(&before);
    assert_eq!((one_call.grant_copies, one_call.syscalls), (64, 1));
    back.peer().copy(GUEST, LocalBytes::FromPeer(&mut [0; 4096]), &mut ops[..3]).unwrap();
    assert_eq!(back.counters().since(&before).syscalls, 4, "three pieces: pread each");

    let before = back.counters();
    let map = back.peer().map(GUEST, &refs, Access::ReadOnly).unwrap();
    back.peer().unmap(&mut vec![map]);
    let mapped = back.counters().since(&before);
    assert_eq!((mapped.grant_maps, mapped.grant_unmaps, mapped.syscalls), (64, 64, 2), "one run of pages");
    drop(region);
}

/// The requests of a worker's handle count as its process', also once that handle is gone.
#[test]
fn a_process_has_asked_for_what_all_of_its_handles_asked_for() {
    let broker = broker();
    let front = broker.attach(GUEST).unwrap();
    let mut refs = [GrantRef::NONE; 4];
    let region = front.grants().alloc(BACK, Access::ReadWrite, &mut refs).unwrap();
    let stranger = broker.attach(BACK).unwrap();
    let back = broker.attach(BACK).unwrap();
    let worker = back.another().unwrap();
    let own = worker.another().unwrap();
    let maps = [&back, &worker, &own].map(|p| p.peer().map(GUEST, &refs, Access::ReadOnly).unwrap());
    let unmapped = |p: &Loopback| (p.counters().grant_maps, p.counters().grant_unmaps);
    assert_eq!([&back, &worker, &own].map(unmapped), [(12, 0); 3]);
    drop(own);
    assert_eq!(unmapped(&back), (12, 0), "its map is there still");
    drop(maps);
    assert_eq!([&back, &worker].map(unmapped), [(12, 12); 2]);
    drop(worker);
    assert_eq!([&back, &stranger].map(unmapped), [(12, 12), (0, 0)]);
    drop(region);
}

/// A descriptor, such as the xenstore connection, wakes a waiter, too.
#[test]
fn a_descriptor_wakes_a_waiter() {
    let broker = broker();
    let front = broker.attach(GUEST).unwrap();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let (_quiet, other) = UnixStream::pair().unwrap();
    let quiet = front.events().also_wake_on(other.as_fd()).unwrap();
    let number = front.events().also_wake_on(theirs.as_fd()).unwrap();
    let mut ready = ReadySet::default();
    assert!(!front.events().check());
    ours.write_all(b"x").unwrap();
    front.events().wait(&mut ready, None);
    assert!(ready.ports.is_empty());
    assert!(front.events().woken_by(number) && !front.events().woken_by(quiet));
    assert!(front.events().check() && front.events().woken_by(number));
    front.events().forget(number);
    front.events().wait(&mut ready, Some(Duration::from_millis(1)));
    assert!(!front.events().woken_by(number));
    // The peer sees the end of the stream once the duplicate is gone too.
    drop(theirs);
    assert!(ours.write_all(b"x").is_err());
}

/// A peer writes whatever it likes into its table: frames outside of its memory, the table itself.
#[test]
fn entries_that_break_the_rules_are_refused() {
    GrantTableVersion::ALL.into_iter().for_each(entries_are_refused);
}

fn entries_are_refused(version: GrantTableVersion) {
    let broker = broker_with(version);
    let front = broker.attach(GUEST).unwrap();
    let back = broker.attach(BACK).unwrap();
    let mut refs = [GrantRef::NONE; 1];
    let region = front.grants().alloc(BACK, Access::ReadWrite, &mut refs).unwrap();
    // The table is the first page of the domain: reached from the region, as a hostile guest
    // reaches it.
    let first = region.first_frame();
    let (entry, frame) = match version {
        GrantTableVersion::V1 => (8 * refs[0].0 as usize, 4),
        GrantTableVersion::V2 => (16 * refs[0].0 as usize, 8),
    };
    let word = |at: usize| {
        // SAFETY: the domain's whole memory is mapped, the region is its page `first`; the entry is
        // aligned.
        unsafe {
            let table = region.base().as_ptr().sub(first * 4096);
            &*table.add(entry + at).cast::<AtomicU32>()
        }
    };
    let (head, frame, upper) = (word(0), word(frame), word(frame + 4));
    let refused = |status: GrantStatus, what: &str| {
        let map = back.peer().map(GUEST, &refs, Access::ReadOnly);
        assert_eq!(map.unwrap_err().status, status, "{what}");
        let mut ops = [CopyOp { gref: refs[0], offset: 0, len: 4, at: 0, status: GrantStatus::OKAY }; 9];
        back.peer().copy(GUEST, LocalBytes::FromPeer(&mut [0; 4]), &mut ops).unwrap();
        assert!(ops.iter().all(|op| op.status == status), "{what}: {ops:?}");
    };
    let DomainSpec { pages, grant_frames, .. } = DomainSpec::guest(GUEST);
    for violation in [0, grant_frames - 1, pages as u32, u32::MAX] {
        frame.store(violation, Ordering::SeqCst);
        refused(GrantStatus::BAD_PAGE, &format!("frame {violation}"));
    }
    frame.store(first as u32, Ordering::SeqCst);
    // Types of other grants, and the domid that it has for another, for each flag and domid at a
    // time. Of version 2 there are more, which the loopback has not.
    let stood = head.load(Ordering::SeqCst);
    let mut wrong = vec![
        (stood & !3, GrantStatus::BAD_GNTREF),
        (stood & !3 | 2, GrantStatus::BAD_GNTREF),
        (stood + (1 << 16), GrantStatus::PERMISSION_DENIED),
    ];
    if version == GrantTableVersion::V2 {
        wrong.push((stood | 3, GrantStatus::GENERAL_ERROR)); // transitive
        wrong.push((stood | 0x100, GrantStatus::GENERAL_ERROR)); // a part of the page
        upper.store(1, Ordering::SeqCst);
        refused(GrantStatus::BAD_PAGE, "a frame beyond 2^32");
        upper.store(0, Ordering::SeqCst);
    }
    for (word, status) in wrong {
        head.store(word, Ordering::SeqCst);
        refused(status, &format!("word {word:#x}"));
    }
    head.store(stood, Ordering::SeqCst);
    let map = back.peer().map(GUEST, &refs, Access::ReadOnly).unwrap();
    // While it is mapped, another false entry changes nothing: the frame that was mapped counts.
    frame.store(1, Ordering::SeqCst);
    drop(back.peer().map(GUEST, &refs, Access::ReadWrite).unwrap());
    frame.store(first as u32, Ordering::SeqCst);
    // Nor does one that says that it has ended, or is another's: it is in use until it is unmapped.
    for word in [0, stood + (1 << 16)] {
        head.store(word, Ordering::SeqCst);
        drop(back.peer().map(GUEST, &refs, Access::ReadWrite));
        assert_eq!(broker.audit().maptrack, 1);
    }
    head.store(stood, Ordering::SeqCst);
    drop(map);
    assert_eq!(broker.audit().maptrack, 0);
    front.grants().release(region).map_err(|_| "still in use").unwrap();
}

/// Version 2: pages that are dropped while they are mapped are no longer granted, and keep their
/// content until they are unmapped. Pages whose end was only asked for stay granted.
#[test]
fn a_grant_that_ends_late_is_no_grant_meanwhile() {
    let broker = broker_with(GrantTableVersion::V2);
    let front = broker.attach(GUEST).unwrap();
    let back = broker.attach(BACK).unwrap();
    let mut refs = [GrantRef::NONE; 3];
    let region = front.grants().alloc(BACK, Access::ReadWrite, &mut refs).unwrap();
    let map = back.peer().map(GUEST, &refs[1..2], Access::ReadWrite).unwrap();
    let Err(InUse(region)) = front.grants().release(region) else { panic!("mapped, and released") };
    assert!(region.copy_in(4096, b"kept"));
    let again = back.peer().map(GUEST, &refs[1..2], Access::ReadOnly).unwrap();
    assert!(back.peer().map(GUEST, &refs[..1], Access::ReadOnly).is_err(), "it was not in use");
    drop((region, again));
    let refused = back.another().unwrap().peer().map(GUEST, &refs[1..2], Access::ReadOnly);
    assert_eq!(refused.unwrap_err().status, GrantStatus::BAD_GNTREF);
    assert_eq!((broker.audit().grants, broker.audit().maptrack), (0, 1));
    // No one else gets the page.
    let DomainSpec { pages, grant_frames, .. } = DomainSpec::guest(GUEST);
    let table = front.grants().per_frame().unwrap();
    assert!(table.pages(pages - grant_frames as usize).is_err());
    let mut bytes = [0; 4];
    assert!(map.copy_out(0, &mut bytes) && &bytes == b"kept");
    drop(map);
    drop(table.pages(pages - grant_frames as usize).unwrap());
    drop((front, back));
    settles(&broker, Audit { domains: 1, ..Audit::default() });
}

#[test]
#[should_panic(expected = "did not grant it")]
fn a_grant_is_revoked_once() {
    let broker = broker();
    let front = broker.attach(GUEST).unwrap();
    let table = front.grants().per_frame().unwrap();
    let pages = table.pages(1).unwrap();
    let gref = table.grant(BACK, &pages, 0, Access::ReadOnly).unwrap();
    table.revoke(gref).unwrap();
    let _ = table.revoke(gref);
}

/// Tells a thread to stop, also when a test fails: a scope waits for its threads.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A page is granted and revoked again and again while the peer maps it whenever it can, also
/// between two steps of the revocation. After the one atomic step that revokes it, the peer sees
/// nothing of what the page is then used for.
#[test]
fn xsa_396_a_mapping_between_check_and_revoke() {
    GrantTableVersion::ALL.into_iter().for_each(a_mapping_between_check_and_revoke);
}

fn a_mapping_between_check_and_revoke(version: GrantTableVersion) {
    const SHARED: u32 = 0x1111_1111;
    const PRIVATE: u32 = 0x5EC2_E75E;
    /// Number of times the two must meet.
    const MEETINGS: u32 = 200;
    let broker = broker_with(version);
    let front = broker.attach(GUEST).unwrap();
    let table = front.grants().per_frame().unwrap();
    let page = table.pages(1).unwrap();
    let (gref, done) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _done = SetOnDrop(&done);
        let peer = scope.spawn(|| {
            let back = broker.attach(BACK).unwrap();
            let mut mapped = 0u32;
            while !done.load(Ordering::Relaxed) {
                let gref = GrantRef(gref.load(Ordering::Acquire));
                let Ok(map) = back.peer().map(GUEST, &[gref], Access::ReadOnly) else { continue };
                for _ in 0..mapped % 20 {
                    assert_eq!(map.load_u32(0), Some(SHARED), "mapped, and used for something else");
                }
                mapped += 1;
            }
        });
        let (mut busy, mut round) = (0u32, 0u32);
        while busy < MEETINGS && !peer.is_finished() {
            round += 1;
            assert!(page.store_u32(0, SHARED));
            let now = table.grant(BACK, &page, 0, Access::ReadOnly).unwrap();
            gref.store(now.0, Ordering::Release);
            if round % 4 == 0 {
                std::thread::yield_now();
            }
            while table.revoke(now).is_err() {
                busy += 1;
                std::thread::yield_now();
            }
            assert!(page.store_u32(0, PRIVATE));
        }
    });
    front.grants().release(page).map_err(|_| "still in use").unwrap();
}

/// The thread that handles an end's event closes it, while the other end sends and closes, too: no
/// thread waits for another, and nothing is left.
#[test]
fn xsa_441_a_channel_closed_while_its_event_is_handled() {
    const ROUNDS: usize = 1000;
    let broker = broker();
    let (offered, ports) = mpsc::channel::<EvtchnPort>();
    let (closed, received) = mpsc::channel::<()>();
    let (bound, binds) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (offered, binds) = (offered, binds);
            let guest = broker.attach(GUEST).unwrap();
            let mut ready = ReadySet::default();
            for _ in 0..ROUNDS {
                let (chan, port) = guest.events().offer(BACK).unwrap();
                offered.send(port).unwrap();
                binds.recv().unwrap(); // an event of the number's last owner may come sooner
                guest.events().wait(&mut ready, None);
                assert_eq!(ready.ports, [port]);
                drop(chan); // in the handler: masked, with more events on their way
                closed.send(()).unwrap();
            }
        });
        let back = broker.attach(BACK).unwrap();
        let mut ready = ReadySet::default();
        for port in ports {
            let chan = back.events().bind(GUEST, port).unwrap();
            bound.send(()).unwrap();
            back.events().wait(&mut ready, None); // the event of the binding
            while received.try_recv().is_err() {
                back.events().notify(&chan);
            }
            back.events().notify(&chan); // to no one
            back.events().unmask(&chan);
        }
    });
    settles(&broker, Audit { domains: 1, ..Audit::default() }); // the guest ended with its process
}

#[test]
fn xsa_157_468_the_broker_s_socket_is_its_user_s_alone() {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::temp_dir().join(format!("pregrant-mode-{}.broker", std::process::id()));
    let broker = Broker::start(Some(&path), Hooks::default()).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(broker);
}

/// One queue of a guest, with its worker.
struct Carried {
    number: usize,
    chan: Channel,
    map: PeerMap,
}

/// Three workers of one domain, each with a handle of its own, hand six queues around while the
/// guest writes to them: no event is lost on the way, a page is mapped by one and unmapped by
/// another while both map others, and nothing is left.
#[test]
fn workers_hand_channels_and_maps_around() {
    const QUEUES: usize = 6;
    const WORKERS: usize = 3;
    const ROUNDS: u32 = 400;
    let broker = broker();
    let front = broker.attach(GUEST).unwrap();
    let mut refs = [GrantRef::NONE; QUEUES];
    let region = front.grants().alloc(BACK, Access::ReadWrite, &mut refs).unwrap();
    let offered: Vec<_> = (0..QUEUES).map(|_| front.events().offer(BACK).unwrap()).collect();
    let first = broker.attach(BACK).unwrap();
    let mut handles: Vec<Loopback> = (1..WORKERS).map(|_| first.another().unwrap()).collect();
    handles.push(first);
    let done = AtomicBool::new(false);
    let moves = AtomicU32::new(0);
    let (outboxes, inboxes): (Vec<_>, Vec<_>) = (0..WORKERS).map(|_| mpsc::channel::<Carried>()).unzip();
    for (number, (_, port)) in offered.iter().enumerate() {
        let by = &handles[number % WORKERS];
        let chan = by.events().bind(GUEST, *port).unwrap();
        let map = by.peer().map(GUEST, &refs[number..=number], Access::ReadWrite).unwrap();
        outboxes[number % WORKERS].send(Carried { number, chan, map }).unwrap();
    }
    std::thread::scope(|scope| {
        let _done = SetOnDrop(&done);
        for (k, (own, inbox)) in handles.into_iter().zip(inboxes).enumerate() {
            let (next, done, moves) = (outboxes[(k + 1) % WORKERS].clone(), &done, &moves);
            scope.spawn(move || {
                let (mut queues, mut ready, mut received) = (Vec::<Carried>::new(), ReadySet::default(), k);
                while !done.load(Ordering::Relaxed) {
                    for Carried { number, chan, map } in inbox.try_iter() {
                        let chan = own.events().adopt(chan).unwrap();
                        // Both are mapped for a moment; then the one of the other's handle goes.
                        let again = own.peer().map(GUEST, &refs[number..=number], Access::ReadWrite).unwrap();
                        if number % 2 == 0 {
                            own.peer().unmap(&mut vec![map])
                        } else {
                            drop(map)
                        }
                        queues.push(Carried { number, chan, map: again });
                    }
                    own.events().wait(&mut ready, Some(Duration::from_micros(200)));
                    for port in &ready.ports {
                        let Some(at) = queues.iter().position(|q| own.events().local(&q.chan) == *port)
                        else {
                            continue; // of one that went meanwhile
                        };
                        let queue = &queues[at];
                        own.events().unmask(&queue.chan);
                        let said = queue.map.load_u32(0).unwrap();
                        assert!(queue.map.store_u32(4, said));
                        own.events().notify(&queue.chan);
                        received += 1;
                        if received % 5 == 0 {
                            // An event that comes from here on is not waited for: the next one
                            // reports it.
                            moves.fetch_add(1, Ordering::Relaxed);
                            let _ = next.send(queues.swap_remove(at)); // it may have ended
                        }
                    }
                }
            });
        }
        drop(outboxes);
        let mut ready = ReadySet::default();
        for round in 1..=ROUNDS {
            for (number, (chan, _)) in offered.iter().enumerate() {
                assert!(region.store_u32(number * 4096, round));
                front.events().notify(chan);
            }
            // All of them answer, or this never ends.
            while (0..QUEUES).any(|number| region.load_u32(number * 4096 + 4) != Some(round)) {
                front.events().wait(&mut ready, None);
                for port in &ready.ports {
                    let (chan, _) = offered.iter().find(|(_, p)| p == port).unwrap();
                    front.events().unmask(chan);
                }
            }
        }
    });
    assert!(moves.load(Ordering::Relaxed) > ROUNDS / 5, "the queues hardly moved");
    front.grants().release(region).map_err(|_| "still mapped").unwrap();
    drop((offered, front));
    settles(&broker, Audit { domains: 1, ..Audit::default() });
}
