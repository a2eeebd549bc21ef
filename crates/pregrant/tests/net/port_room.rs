//! A port without room: its guest's frames stay on the ring, no thread waits, and no frame is lost.

use pregrant::port::BURST_FRAMES;
use pregrant::wire::netif::{RSP_OKAY, TxRequest};
use pregrant_testkit::model_front::Slot;
use pregrant_testkit::two_domains::{TwoDomains, Way};

#[test]
fn frames_stay_on_the_ring_while_their_port_has_no_room() {
    for way in [Way::Copy, Way::Map, Way::Persistent(20), Way::Staging(256)] {
        let domains = TwoDomains::new();
        let mut game = domains.tx_model(way, 0, 2);
        let frame = |gref, id| [Slot::Data(TxRequest { gref, offset: 0, flags: 0, id, size: 100 })];
        let gref = game.refs[1].0;
        for id in 0..2 * BURST_FRAMES as u16 {
            game.model.play(&frame(gref, id));
        }
        game.port.full = true;
        for _ in 0..3 {
            game.run().expect("an honest front");
            assert!(game.back.stands() == Some(7) && game.port.took.is_empty(), "{way:?}");
            // Nothing is to be done before the port says so.
            assert_eq!((game.back.is_pending(), game.back.final_check()), (false, Ok(false)), "{way:?}");
        }
        assert_eq!(game.model.answers(), Ok(vec![]));
        game.port.full = false;
        game.run().expect("an honest front");
        assert_eq!(game.model.answers(), Ok(vec![vec![RSP_OKAY]; 2 * BURST_FRAMES]), "{way:?}");
        assert!(game.back.stands().is_none() && game.port.took.len() == 2 * BURST_FRAMES, "{way:?}");
        assert_eq!(game.back.stats().dropped, 0);
        game.close();
        domains.assert_empty();
    }
}
