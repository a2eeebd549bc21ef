//! Requests that name buffers of the lists, as no honest front writes them.
#![cfg(not(miri))]

use pregrant::net::path::{AnyPath, FrontPath, StagingPath};
use pregrant::platform::Access;
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{RSP_ERROR, RSP_OKAY, TXF_MORE_DATA, TXF_STAGING_BUFFER, TxRequest};
use pregrant_testkit::model_front::Slot;
use pregrant_testkit::two_domains::{TwoDomains, Way};

/// A front may name any buffer of either list, even one that is posted: it sends the bytes that are
/// there, and nothing of anyone else.
#[test]
fn a_front_that_names_buffers_as_it_likes() {
    let domains = TwoDomains::new();
    let way = Way::Staging(256);
    let (tx_area, tx_buffers) = domains.stage(way, Access::ReadOnly, 0).expect("staging");
    let (rx_area, rx_buffers) = domains.stage_some(way, Access::ReadWrite, 256, 300).expect("staging");
    for (area, of) in [(&tx_area, 0u8), (&rx_area, 100)] {
        for id in 0..area.entries() {
            let fill = vec![of.wrapping_add(id as u8); area.slot_bytes()];
            assert!(area.bytes().copy_in(area.start(id as u16), &fill));
        }
    }
    let rx = StagingPath::new(rx_buffers).expect("memory");
    let by_list =
        AnyPath::Staging(StagingPath::new(tx_buffers).expect("memory").with_received(&rx).expect("memory"));
    let mut g = domains.tx_model_by(by_list.into(), Some(tx_area), u32::MAX - 1, 2);
    let named = |id: u16, gref, offset, size, more: u16| {
        Slot::Data(TxRequest { gref, offset, flags: TXF_STAGING_BUFFER | more, id, size })
    };
    let plain = Slot::Data(TxRequest { gref: 0, offset: 0, flags: 0, id: 0, size: 60 });
    for (slots, status, bytes) in [
        (vec![named(7, 256, 0, 60, 0)], RSP_OKAY, Some(vec![100; 60])),
        (vec![named(7, 555, 196, 60, 0)], RSP_OKAY, Some(vec![(100u8).wrapping_add(43); 60])),
        (vec![named(7, 3, 0, 256, 0)], RSP_OKAY, Some(vec![3; 256])),
        (
            vec![named(7, 257, 0, 120, TXF_MORE_DATA), named(8, 5, 0, 60, 0)],
            RSP_OKAY,
            Some([[101; 60], [5; 60]].concat()),
        ),
        (vec![named(7, 556, 0, 60, 0)], RSP_ERROR, None),
        (vec![named(7, 256, 197, 60, 0)], RSP_ERROR, None),
        (vec![named(7, 256, 0, 257, 0)], RSP_ERROR, None),
        (vec![named(7, 65535, 0, 60, 0)], RSP_ERROR, None),
        (vec![named(7, 65536, 0, 60, 0)], RSP_ERROR, None),
        (vec![named(7, u32::MAX, 0, 60, 0)], RSP_ERROR, None),
        // An id of the RX list is no request's own, whatever it is called by name.
        (vec![Slot::Data(TxRequest { gref: 0, offset: 0, flags: 0, id: 261, size: 60 })], RSP_ERROR, None),
        // The first by name, the second in the buffer of its own id; and the other way round.
        (
            vec![
                named(7, 257, 0, 120, TXF_MORE_DATA),
                Slot::Data(TxRequest { gref: 0, offset: 0, flags: 0, id: 8, size: 60 }),
            ],
            RSP_OKAY,
            Some([[101; 60], [8; 60]].concat()),
        ),
        (
            vec![
                Slot::Data(TxRequest { gref: 0, offset: 0, flags: TXF_MORE_DATA, id: 8, size: 120 }),
                named(7, 257, 0, 60, 0),
            ],
            RSP_OKAY,
            Some([[8; 60], [101; 60]].concat()),
        ),
        // A frame of which one slot is wrong is none.
        (vec![named(7, 257, 0, 120, TXF_MORE_DATA), named(8, 556, 0, 60, 0)], RSP_ERROR, None),
        (vec![named(7, 257, 0, 120, TXF_MORE_DATA), named(8, 258, 197, 60, 0)], RSP_ERROR, None),
        (vec![named(7, 8, 0, 120, TXF_MORE_DATA), named(8, 8, 0, 60, 0)], RSP_ERROR, None),
        // One buffer twice in a frame, by its own id and by its name.
        (
            vec![
                named(7, 8, 0, 120, TXF_MORE_DATA),
                Slot::Data(TxRequest { gref: 0, offset: 0, flags: 0, id: 8, size: 60 }),
            ],
            RSP_ERROR,
            None,
        ),
        (vec![named(7, 256, 0, 120, TXF_MORE_DATA), named(8, 256, 0, 60, 0)], RSP_ERROR, None),
        (vec![plain], RSP_OKAY, Some(vec![0; 60])),
    ] {
        g.model.play(&slots);
        assert_eq!(g.run(), Ok(()));
        let answers = g.model.answers().expect("answers by the rules").remove(0);
        assert!(answers.iter().all(|s| *s == status), "{slots:?}: {answers:?}");
        let took: Vec<_> = g.port.took.drain(..).map(|(bytes, _)| bytes).collect();
        assert!(took == bytes.into_iter().collect::<Vec<_>>(), "{slots:?}: {took:?}");
    }
    // Twice in a batch: the second is none of the queue's frames.
    g.model.play(&[named(1, 300, 0, 60, 0)]);
    g.model.play(&[named(2, 300, 0, 60, 0)]);
    assert_eq!(g.run(), Ok(()));
    assert_eq!(g.model.answers(), Ok(vec![vec![RSP_OKAY], vec![RSP_ERROR]]));
    assert_eq!(domains.xen.counts().copies, 0, "a name is no grant");
    g.close();
    drop(rx);
    for granted in rx_area.into_granted() {
        assert!(granted.release(&domains.guest).is_ok(), "the back still maps a staging page");
    }
    domains.assert_empty();
}

/// If naming was not negotiated, the flag has no meaning, and the reference is a grant, as before.
#[test]
fn without_the_revision_a_name_is_a_grant() {
    let domains = TwoDomains::new();
    let mut g = domains.tx_model(Way::Staging(256), 0, 2);
    let gref = g.refs[1].0;
    let name = |gref| TxRequest { gref, offset: 0, flags: TXF_STAGING_BUFFER, id: 0, size: 60 };
    g.model.play(&[Slot::Data(name(gref))]);
    assert_eq!(g.run(), Ok(()));
    assert_eq!(g.model.answers(), Ok(vec![vec![RSP_OKAY]]));
    assert!(g.port.took[0].0 == g.content(1, 0, 60));
    g.model.play(&[Slot::Data(name(gref + 1000))]);
    assert_eq!(g.run(), Ok(()));
    assert_eq!(g.model.answers(), Ok(vec![vec![RSP_ERROR]]));
    g.close();
    domains.assert_empty();
}
