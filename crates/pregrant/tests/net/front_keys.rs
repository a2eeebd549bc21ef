//! A vif's keys left by fronts that no longer want a key, or that came after another driver of
//! their guest.

use pregrant::net::features::{BackFeatures, ChannelKeys, CtrlKeys, FrontRequest, QueueKeys, RingRequest};
use pregrant::net::path::staging::keys::{DataKeys, DataRequest, Lists, Request};
use pregrant::net::path::staging::list::DataLen;
use pregrant::xenbus::key_source::Pairs;
use pregrant::{EvtchnPort, GrantRef};
use pregrant_testkit::bus::{MapBus, device};

/// The request that a back reads from a front that writes these keys.
fn read(pairs: Pairs, others: &[(&str, &str)]) -> Result<FrontRequest, String> {
    let (_, mut back): (MapBus, MapBus) = device();
    back.peer.borrow_mut().extend(pairs);
    back.peer.borrow_mut().extend(others.iter().map(|(key, value)| (key.to_string(), value.to_string())));
    FrontRequest::read(&mut back, &BackFeatures { guest_copy: true, ..BackFeatures::default() })
}

fn queue(channels: ChannelKeys) -> QueueKeys {
    QueueKeys::new(GrantRef(8), GrantRef(9), channels)
}

#[test]
fn an_empty_value_is_no_value() {
    let plain = FrontRequest::new(vec![queue(ChannelKeys::Single(EvtchnPort(3)))]);
    let plain = FrontRequest { staging: Request { revision: 1, rx_heads: false }, ..plain };
    let list = DataKeys { list_refs: vec![GrantRef(40)], len: DataLen::new(256).unwrap() };
    let split = ChannelKeys::Split { tx: EvtchnPort(4), rx: EvtchnPort(5) };
    let long = QueueKeys {
        tx_ring: vec![GrantRef(20), GrantRef(21)],
        staging: Lists { tx: DataRequest::Keys(list), ..Lists::default() },
        data_ring: RingRequest::Index(GrantRef(60)),
        ..queue(split)
    };
    let ctrl = Some(CtrlKeys { ring: GrantRef(90), channel: EvtchnPort(91) });
    let full = FrontRequest { ctrl, ..FrontRequest::new(vec![long.clone(), long]) };
    for empty in ["", "\0", " "] {
        for (front, keys) in [
            (
                &plain,
                "multi-queue-num-queues tx-ring-page-order event-channel-tx event-channel-rx ctrl-ring-ref",
            ),
            (&plain, "data-ring-ref guest-copy-ref tx-data-len rx-data-ref0"),
            (
                &full,
                "queue-0/tx-ring-ref queue-1/rx-ring-page-order queue-1/event-channel queue-1/tx-data-ref1",
            ),
            (&full, "queue-1/rx-data-len queue-1/rx-data-ref0 queue-1/guest-copy-ref"),
        ] {
            for key in keys.split(' ') {
                assert_eq!(read(front.pairs(), &[(key, empty)]).as_ref(), Ok(front), "{key}");
            }
        }
        for key in ["tx-ring-ref", "rx-ring-ref", "event-channel"] {
            let e = read(plain.pairs(), &[(key, empty)]).unwrap_err();
            assert!(e.starts_with(key) && e.contains("the key is missing"), "{e}");
        }
        let (mut front, _) = device();
        for key in ["multi-queue-max-queues", "max-tx-ring-page-order", "feature-sg"] {
            front.peer.borrow_mut().insert(key.into(), empty.into());
        }
        let reported = BackFeatures::read(&mut front).unwrap();
        assert_eq!((reported.max_queues, reported.max_tx_ring_order, reported.sg), (1, 0, false));
    }
}

#[test]
fn two_channels_count_where_both_are_named() {
    let without =
        |pairs: Pairs| pairs.into_iter().filter(|(key, _)| key != "event-channel").collect::<Pairs>();
    let pairs = without(FrontRequest::new(vec![queue(ChannelKeys::Single(EvtchnPort(1)))]).pairs());
    let with = |others: &[(&str, &str)]| {
        read(pairs.clone(), others).map(|mut front| front.queues.remove(0).channels)
    };
    let (one, tx, rx) = (("event-channel", "3"), ("event-channel-tx", "4"), ("event-channel-rx", "5"));
    let single = Ok(ChannelKeys::Single(EvtchnPort(3)));
    let split = Ok(ChannelKeys::Split { tx: EvtchnPort(4), rx: EvtchnPort(5) });
    assert_eq!(with(&[one]), single);
    assert_eq!(with(&[tx, rx]), split);
    // A boot loader's is left beside the kernel's two.
    assert_eq!(with(&[one, tx, rx]), split);
    for (half, other) in [(tx, rx), (rx, tx)] {
        assert_eq!(with(&[one, half]), single);
        assert_eq!(with(&[one, half, (other.0, "")]), single);
        let e = with(&[half]).unwrap_err();
        assert!(e.starts_with(&format!("{}=", other.0)) && e.contains("the key is missing"), "{e}");
    }
    let e = with(&[]).unwrap_err();
    assert!(e.starts_with("event-channel=") && e.contains("the key is missing"), "{e}");
}
