//! The control ring and multicast control from end to end, over plain maps: settings of a front,
//! that they outlive the back (docs/protocol 1.1, R4), and what is left if an end does not support
//! them.
#![cfg(not(miri))]

use pregrant::net::back::{BackVif, ControlPage, Polled, VifConfig};
use pregrant::net::features::BackFeatures;
use pregrant::net::front::ctrl::NotAsked;
use pregrant::net::front::{CtrlFront, FrontConfig, FrontVif, Regions};
use pregrant::net::headers::MacAddr;
use pregrant::net::path::gref_mapping::DEFAULT_LIMIT;
use pregrant::platform::local::{LocalDomain, LocalXen, Pages};
use pregrant::platform::{Access, PeerMem};
use pregrant::port::{Arena, Burst, FramePort, Offload, Offloads, Steering};
use pregrant::ring::{NetCtrl, RingMem, RingPages, Word};
use pregrant::wire::netif_ctrl::{CtrlResponse, CtrlType};
use pregrant::{GrantRef, PeerFault};
use pregrant_testkit::bus::{connect, device};
use pregrant_testkit::two_domains::{GUEST, HOST, TestPort};
use std::sync::{Arc, Mutex};

fn back(features: BackFeatures) -> BackVif<LocalDomain> {
    BackVif::new(GUEST, 0, VifConfig { features, ..VifConfig::default() })
}

/// Asks, and gives the answer once the back has had its control turn.
fn ask(
    (g, front): (&LocalDomain, &mut FrontVif<LocalDomain>),
    (h, back): (&LocalDomain, &mut BackVif<LocalDomain>),
    request: impl FnOnce(&mut CtrlFront<LocalDomain>, &LocalDomain) -> Result<(), NotAsked>,
) -> (u32, u32) {
    let ctrl = front.ctrl().expect("a control ring");
    assert_eq!((request(ctrl, g), ctrl.answer()), (Ok(()), Ok(None)));
    assert_eq!(ctrl.ask(g, CtrlType::GetHashFlags, [0; 3]), Err(NotAsked), "one at a time");
    assert_eq!((back.poll_ctrl(h), back.poll_ctrl(h)), (Ok(Polled::More), Ok(Polled::Idle)));
    let answer = ctrl.answer().expect("an honest back").expect("an answer");
    (answer.status, answer.data)
}

/// The back takes the guest's request for multicast frames.
fn request_group(
    (g, front): (&LocalDomain, &mut FrontVif<LocalDomain>),
    (h, back): (&LocalDomain, &mut BackVif<LocalDomain>),
    (n, wanted): (u8, bool),
) -> (usize, u64) {
    assert!(front.multicast(g, MacAddr([1, 0, 0x5E, 0, 0, n]), wanted));
    assert_eq!(front.multicast_requests().0, 1);
    while back.poll_tx(h, 0, &mut Groups::default(), &mut Arena::new()) == Ok(Polled::More) {}
    assert_eq!(front.queue_mut(0).unwrap().reclaim(g, 1), Ok(2));
    front.multicast_requests()
}

/// A port with a TCP segment to each of five groups, once.
#[derive(Default)]
struct Groups {
    given: bool,
}

impl FramePort for Groups {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        assert!(frames.iter().next().is_none(), "a multicast request is no frame");
        0
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        if self.given {
            return 0;
        }
        self.given = true;
        for n in 0..5 {
            let mut frame =
                vec![1, 0, 0x5E, 0, 0, n, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6];
            frame.resize(54 + usize::from(n), n);
            assert!(into.push(&frame, Offload::default()));
        }
        5
    }
}

/// The groups (of five) whose frames reach the front.
fn received(
    (g, front): (&LocalDomain, &mut FrontVif<LocalDomain>),
    (h, back): (&LocalDomain, &mut BackVif<LocalDomain>),
) -> Vec<u8> {
    let mut port = Groups::default();
    while back.poll_rx(h, 0, &mut port) == Ok(Polled::More) {}
    let mut came = Arena::new();
    front.queue_mut(0).unwrap().recv(g, &mut came, 1).expect("an honest back");
    came.burst().iter().map(|(frame, _)| frame[5]).collect()
}

fn kept(pages: &Pages) -> ControlPage {
    ControlPage::new(pages.clone()).expect("a page")
}

/// A port that keeps what it gets of the guest's queues.
#[derive(Clone, Default)]
struct SteeredPort(Arc<Mutex<Steerings>>);

type Steerings = Vec<Option<Arc<dyn Steering>>>;

impl FramePort for SteeredPort {
    fn caps(&self) -> Offloads {
        Offloads::default()
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        frames.frames.len()
    }
    fn rx_burst(&mut self, _into: &mut Arena) -> usize {
        0
    }
    fn steer(&mut self, by: Option<Arc<dyn Steering>>) {
        self.0.lock().expect("one thread").push(by);
    }
}

/// The steering that the ports of a vif's two queues get in a turn.
fn steerings(h: &LocalDomain, back: &mut BackVif<LocalDomain>) -> Steerings {
    let reported = SteeredPort::default();
    let mut ports: Vec<Box<dyn FramePort>> = vec![Box::new(reported.clone()), Box::new(reported.clone())];
    back.turn(h, &mut ports).expect("an honest front");
    std::mem::take(&mut reported.0.lock().expect("one thread"))
}

/// Control ring, multicast and the hash from end to end, over a back's death.
#[test]
fn what_a_front_set_outlives_its_back() {
    let xen = LocalXen::new();
    let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
    let (mut fb, mut bb) = device();
    let config =
        FrontConfig { queues: 2, ctrl_ring: true, multicast_control: true, ..FrontConfig::default() };
    let mut front = FrontVif::new(HOST, config, false);
    let (pages, mut first) = (Pages::new(1), back(BackFeatures::default()));
    first.keep_control(kept(&pages));
    connect((&g, &mut front, &mut fb), (&h, &mut first, &mut bb));
    assert!(front.takes_multicast());
    assert!(matches!(steerings(&h, &mut first)[..], [None, None]), "as the port likes");
    assert!(steerings(&h, &mut first).is_empty(), "said once");
    let (unsaid, by) = first.steering();
    assert!(by.is_none(), "the same to who asks the vif");
    assert_eq!(received((&g, &mut front), (&h, &mut first)), [], "none was named");

    let say = |first: &mut BackVif<_>, front: &mut FrontVif<_>, t: CtrlType, n: u32| {
        ask((&g, front), (&h, first), |c, p| c.ask(p, t, [n, 0, 0]))
    };
    assert_eq!(say(&mut first, &mut front, CtrlType::SetHashAlgorithm, 1), (0, 0));
    assert_eq!(say(&mut first, &mut front, CtrlType::GetHashFlags, 0), (0, 15));
    assert_eq!(say(&mut first, &mut front, CtrlType::SetHashFlags, 3), (0, 0));
    assert_eq!(say(&mut first, &mut front, CtrlType::SetHashMappingSize, 4), (0, 0));
    assert_eq!(say(&mut first, &mut front, CtrlType::GetGrefMappingSize, 0), (0, DEFAULT_LIMIT as u32));
    assert_eq!(ask((&g, &mut front), (&h, &mut first), |c, p| c.set_key(p, &[0x5A; 40])), (0, 0));
    assert_eq!(ask((&g, &mut front), (&h, &mut first), |c, p| c.set_mapping(p, 0, &[1, 1, 1, 1])), (0, 0));
    assert_eq!(
        ask((&g, &mut front), (&h, &mut first), |c, p| c.set_mapping(p, 0, &[2])),
        (2, 0),
        "two queues"
    );
    let reported = steerings(&h, &mut first);
    assert!(reported.len() == 2 && reported.iter().flatten().all(|by| by.queue_of(&[0; 60]) == 1));
    let (said, by) = first.steering();
    assert!(said != unsaid && by.is_some_and(|by| by.queue_of(&[0; 60]) == 1));
    assert_eq!(first.steering().0, said, "to ask changes nothing");
    for n in [2, 3, 4] {
        assert_eq!(request_group((&g, &mut front), (&h, &mut first), (n, true)), (0, 0));
    }
    assert_eq!(request_group((&g, &mut front), (&h, &mut first), (3, false)), (0, 0));
    assert_eq!(received((&g, &mut front), (&h, &mut first)), [2, 4]);

    // It dies; another finds all of it, without a word to the front.
    drop(first);
    let mut second = back(BackFeatures::default());
    second.keep_control(kept(&pages));
    assert!(second.reattach(&h, &mut bb, &mut |_, _| None).expect("live rings"));
    let reported = steerings(&h, &mut second);
    assert!(reported.len() == 2 && reported.iter().flatten().all(|by| by.queue_of(&[0; 60]) == 1));
    assert_eq!(received((&g, &mut front), (&h, &mut second)), [2, 4]);
    assert_eq!(front.ctrl().expect("a control ring").answer(), Ok(None), "answered once");
    assert_eq!(say(&mut second, &mut front, CtrlType::GetHashFlags, 0), (0, 15), "the algorithm is set");

    // The guest changes its mind, at any time.
    fb.own.borrow_mut().insert("request-multicast-control".into(), "0".into());
    second.step(&h, &mut bb, &mut |_, _| None).expect("an honest front");
    assert_eq!(received((&g, &mut front), (&h, &mut second)), [0, 1, 2, 3, 4]);
    fb.own.borrow_mut().insert("request-multicast-control".into(), "1".into());
    second.step(&h, &mut bb, &mut |_, _| None).expect("an honest front");
    assert_eq!(received((&g, &mut front), (&h, &mut second)), [2, 4]);

    // One that finds nothing leaves nothing out, and spreads frames as it likes.
    drop(second);
    let mut third = back(BackFeatures::default());
    assert!(third.reattach(&h, &mut bb, &mut |_, _| None).expect("live rings"));
    assert!(matches!(steerings(&h, &mut third)[..], [None, None]));
    assert_eq!(received((&g, &mut front), (&h, &mut third)), [0, 1, 2, 3, 4]);

    front.close(&mut fb, None).expect("a map");
    for _ in 0..4 {
        third.step(&h, &mut bb, &mut |_, _| None).expect("an honest front");
        front.step(&g, &mut fb).expect("an honest back");
    }
    assert!(front.is_closed());
    drop(third);
    let counts = xen.counts();
    assert_eq!((counts.grants, counts.mapped, counts.channels), (0, 0, 0));
}

/// The state of a request when a back died.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Died {
    /// No request was sent since the last answer was taken.
    Before,
    /// The request is on the ring.
    Asked,
    /// The answer is on the ring, perhaps without an event.
    Answered,
}

/// A successor sends an event only for answers that may not have been notified: some fronts take
/// any event of the control channel for their answer, and others sleep until one arrives
/// (docs/protocol 1.1, R5). The same holds for the data rings.
#[test]
fn a_successor_notifies_of_what_may_be_untold_alone() {
    for (died, keeps) in [Died::Before, Died::Asked, Died::Answered].map(|d| [(d, true), (d, false)]).concat()
    {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut fb, mut bb) = device();
        let mut front = FrontVif::new(HOST, FrontConfig { ctrl_ring: true, ..FrontConfig::default() }, false);
        let pages = Pages::new(1);
        let serves = || {
            let mut vif = back(BackFeatures::default());
            if keeps {
                vif.keep_control(kept(&pages));
            }
            vif
        };
        let mut vif = serves();
        connect((&g, &mut front, &mut fb), (&h, &mut vif, &mut bb));
        let ring = GrantRef(fb.own.borrow()["ctrl-ring-ref"].parse().expect("a number"));
        let ring = RingPages::<NetCtrl, _>::new(h.map(GUEST, &[ring], Access::ReadWrite).expect("the ring"));
        // As fronts do: they ask for an event of the next answer as soon as they have the last.
        let sleeps = |front: &mut FrontVif<LocalDomain>| {
            assert_eq!(front.queue_mut(0).unwrap().final_check(&g, true), Ok(false));
            ring.store(Word::RspEvent, ring.load(Word::RspProd) + 1);
        };
        sleeps(&mut front);
        let flags = |front: &mut FrontVif<_>, vif: &mut BackVif<_>| {
            ask((&g, front), (&h, vif), |c, p| c.ask(p, CtrlType::GetHashFlags, [0; 3]))
        };
        // Not the ring's first.
        for _ in 0..3 {
            flags(&mut front, &mut vif);
            sleeps(&mut front);
        }
        let asks = |front: &mut FrontVif<LocalDomain>| {
            front.ctrl().expect("a control ring").ask(&g, CtrlType::GetHashFlags, [0; 3]).expect("one");
        };
        match died {
            Died::Before => {}
            Died::Asked => asks(&mut front),
            Died::Answered => {
                asks(&mut front);
                assert_eq!(vif.poll_ctrl(&h), Ok(Polled::More));
            }
        }
        // Each in its turn dies at once.
        for successor in 0..3 {
            drop(vif);
            let before = xen.counts().notifications;
            vif = serves();
            assert_eq!(vif.reattach(&h, &mut bb, &mut |_, _| None).ok(), Some(true));
            let events = xen.counts().notifications - before;
            assert_eq!(events, u64::from(died == Died::Answered), "{died:?}, {keeps}, {successor}");
        }
        if died == Died::Asked {
            let before = xen.counts().notifications;
            assert_eq!(vif.poll_ctrl(&h), Ok(Polled::More));
            assert_eq!(xen.counts().notifications - before, 1, "of its answer");
        }
        let answer = front.ctrl().expect("a control ring").answer().expect("an honest back");
        assert_eq!(answer.is_some(), died != Died::Before);
        sleeps(&mut front);

        // A frame each way, answered, and not checked before the back dies; then checked.
        let mut burst = Arena::new();
        assert!(burst.push(&[2; 60], Offload::default()));
        assert_eq!(front.queue_mut(0).unwrap().send(&g, &burst.burst()), Ok(1));
        let mut port = TestPort::default();
        port.gives.push_back((vec![2; 60], Offload::default()));
        while vif.poll_tx(&h, 0, &mut port, &mut Arena::new()) == Ok(Polled::More) {}
        while vif.poll_rx(&h, 0, &mut port) == Ok(Polled::More) {}
        for events in [2, 0] {
            drop(vif);
            let before = xen.counts().notifications;
            vif = serves();
            assert_eq!(vif.reattach(&h, &mut bb, &mut |_, _| None).ok(), Some(true));
            assert_eq!(xen.counts().notifications - before, events, "{died:?}, {keeps}");
            // It checks, and asks for an event of what comes next.
            front.queue_mut(0).unwrap().reclaim(&g, 1).expect("an honest back");
            front.queue_mut(0).unwrap().recv(&g, &mut Arena::new(), 1).expect("an honest back");
            for key in ["tx-ring-ref", "rx-ring-ref"] {
                let gref = GrantRef(fb.own.borrow()[key].parse().expect("a number"));
                let map = h.map(GUEST, &[gref], Access::ReadWrite).expect("the ring");
                // The header is every ring's.
                let ring = RingPages::<NetCtrl, _>::new(map);
                ring.store(Word::RspEvent, ring.load(Word::RspProd) + 1);
            }
        }
    }
}

/// A back that offers nothing of this gets no such request, and no notice of a flag that changes
/// later.
#[test]
fn nothing_of_it_without_the_backs_offer() {
    let xen = LocalXen::new();
    let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
    let (mut fb, mut bb) = device();
    let config = FrontConfig { ctrl_ring: true, multicast_control: true, ..FrontConfig::default() };
    let mut front = FrontVif::new(HOST, config, false);
    let old = BackFeatures {
        multicast_control: false,
        dynamic_multicast_control: false,
        ctrl_ring: false,
        ..BackFeatures::default()
    };
    let mut vif = back(old);
    connect((&g, &mut front, &mut fb), (&h, &mut vif, &mut bb));
    assert!(front.is_live() && front.ctrl().is_none() && !front.takes_multicast());
    assert!(!fb.own.borrow().contains_key("ctrl-ring-ref"));
    assert_eq!(fb.own.borrow()["request-multicast-control"], "0");
    fb.own.borrow_mut().insert("request-multicast-control".into(), "1".into());
    vif.step(&h, &mut bb, &mut |_, _| None).expect("an honest front");
    assert_eq!(received((&g, &mut front), (&h, &mut vif)), [0, 1, 2, 3, 4]);
    assert_eq!(request_group((&g, &mut front), (&h, &mut vif), (1, true)), (0, 1), "refused");
}

/// A back that answers what was not asked, or twice, gets one fault.
#[test]
fn a_back_that_breaks_the_protocol_on_the_control_ring() {
    for (id, msg_type, rsp_prod) in [(2, 4, 1), (1, 5, 1), (1, 4, 2), (1, 4, u32::MAX)] {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut ctrl, keys) = CtrlFront::new(&g, &mut Regions::new(HOST)).expect("a page");
        assert_eq!(ctrl.ask(&g, CtrlType::GetHashMappingSize, [0; 3]), Ok(()));
        let map = h.map(GUEST, &[keys.ring], Access::ReadWrite).expect("the front's ring");
        let ring = RingPages::<NetCtrl, _>::new(map);
        ring.write::<3>(0, CtrlResponse { id, msg_type, status: 0, data: 128 }.to_words());
        ring.store(Word::RspProd, rsp_prod);
        let fault = match rsp_prod {
            1 => PeerFault::UnknownId(id),
            rsp_prod => PeerFault::RspProdOverrun { rsp_prod, rsp_cons: 0, in_flight: 1 },
        };
        assert_eq!(ctrl.answer(), Err(fault));
        drop(ring);
        assert!(ctrl.into_granted().into_iter().all(|granted| granted.release(&g).is_ok()));
        assert_eq!(xen.counts().grants, 0);
    }
}
