//! Foreign frames: requests that name any frame of a guest, of no guest, or grants beside them, on
//! both rings; and a guest that has its own rings written over.
//!
//! ```text
//!   TX slots --back--> frames       are the bytes of the frames that were named, or errors
//!   frames --back--> RX answers     are in the frames that were named, and in no other page, or errors
//! ```

use crate::guest_pages::bytes_of;
use crate::tape::Tape;
use pregrant::PAGE_SIZE;
use pregrant::net::features::RxAccepts;
use pregrant::net::path::{AnyPath, Chain, RX_ORDER, TX_ORDER};
use pregrant::platform::GrantPool;
use pregrant::port::Offload;
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{
    MIN_FRAME, RSP_ERROR, RSP_OKAY, RX_FOREIGN, RxRequest, TXF_FOREIGN, TXF_MORE_DATA, TxRequest,
};
use pregrant_testkit::model_front::Slot;
use pregrant_testkit::two_domains::{FRAMES, TwoDomains, Way, byte};

/// Largest number of operations of one input.
const OPS: usize = 60;
/// Number of pages of the model.
const PAGES: u32 = 4;

pub fn foreign(data: &[u8]) {
    let mut tape = Tape::new(data);
    match tape.below(2) {
        0 => tx(&mut tape),
        _ => rx(&mut tape),
    }
}

/// A frame that the guest does not have.
fn beyond(tape: &mut Tape<'_>) -> u32 {
    tape.one_of(&[FRAMES as u32, FRAMES as u32 + 7, 0x0010_0000, 0x7FFF_FFFF])
}

fn tx(tape: &mut Tape<'_>) {
    let domains = TwoDomains::new();
    domains.numbers_frames(Way::Foreign);
    let chain = Chain::new(TX_ORDER, domains.whole(Way::Foreign).map(AnyPath::Foreign));
    let mut game = domains.tx_model_by(chain, None, u32::MAX - 9, PAGES as usize);
    let first = domains.guest.first_frame(&game.memory).expect("a guest with numbers");
    while tape.more(OPS) {
        // Of each slot: its bytes; None: there are none such.
        let (mut slots, mut bytes, mut named) = (Vec::new(), Some(Vec::new()), 0);
        let nr = 1 + tape.below(4);
        for id in 0..nr as u16 {
            let page = u32::from(tape.u8()) % PAGES;
            let offset = tape.one_of(&[0u16, 1, 64, 2000, 4000]);
            let size = tape.one_of(&[0u16, 7, 60, 96, 2000, 4096]).min(PAGE_SIZE as u16 - offset);
            let content = Some(game.content(page as usize, offset.into(), size.into()));
            let (gref, flags, content) = match tape.below(6) {
                0 => (beyond(tape), TXF_FOREIGN, (size == 0).then(Vec::new)),
                1 => (game.refs[page as usize].0, 0, content),
                _ => (first + page, TXF_FOREIGN, content),
            };
            named += usize::from(flags != 0);
            bytes = bytes.zip(content).map(|(all, piece)| [all, piece].concat());
            let flags = flags | if usize::from(id) + 1 < nr { TXF_MORE_DATA } else { 0 };
            slots.push(TxRequest { gref, offset, flags, id, size });
        }
        let total: usize = slots.iter().map(|req| usize::from(req.size)).sum();
        slots[0].size = total as u16;
        game.model.play(&slots.iter().copied().map(Slot::Data).collect::<Vec<_>>());
        game.run().expect("a frame's number closes no device");
        let answers = game.model.answers().expect("answers in order").remove(0);
        let good = bytes.filter(|_| (named == 0 || named == nr) && total >= MIN_FRAME);
        assert_eq!(answers, vec![if good.is_some() { RSP_OKAY } else { RSP_ERROR }; nr], "{slots:?}");
        let took: Vec<_> = game.port.took.drain(..).map(|frame| frame.0).collect();
        assert!(took.into_iter().eq(good), "{slots:?}");
    }
    game.close();
    domains.assert_empty();
}

fn rx(tape: &mut Tape<'_>) {
    let domains = TwoDomains::new();
    domains.numbers_frames(Way::Foreign);
    let chain = Chain::new(RX_ORDER, domains.whole(Way::Foreign).map(AnyPath::Foreign));
    let mut game = domains.rx_model_by(chain, None, u32::MAX - 9, RxAccepts::ALL);
    let first = domains.guest.first_frame(&game.memory).expect("a guest with numbers");
    let ring = domains.guest.first_frame(&game.ring_memory).expect("a guest with numbers");
    for round in 0..OPS {
        if tape.is_over() {
            break;
        }
        let len = usize::from(tape.one_of(&[60u16, 64, 1500, 4096, 4097, 9000]));
        let frame: Vec<u8> = (0..len).map(|k| byte(k + round)).collect();
        let (mut pages, mut good, mut over) = (Vec::new(), true, false);
        for id in 0..len.div_ceil(PAGE_SIZE) as u16 {
            let page = u32::from(id) * 8 + u32::from(tape.u8() % 8);
            let gref = match tape.below(8) {
                0 => {
                    good = false;
                    RX_FOREIGN | beyond(tape)
                }
                1 | 2 => game.refs[page as usize].0,
                3 if tape.below(16) == 0 => {
                    over = true;
                    RX_FOREIGN | ring
                }
                _ => RX_FOREIGN | (first + page),
            };
            pages.push(page as usize);
            game.model.post(RxRequest { id, gref });
        }
        game.port.gives.push_back((frame.clone(), Offload::default()));
        let ran = game.run();
        if over {
            break; // the guest wrote over its own ring: whatever it says now, nothing panics
        }
        assert!(ran.is_ok());
        let got = game.model.frames().expect("answers in order");
        assert_eq!((got.len(), got[0].failed()), (1, !good));
        for (piece, page) in frame.chunks(PAGE_SIZE).zip(pages).filter(|_| good) {
            assert!(bytes_of(&game.memory, page * PAGE_SIZE, piece.len()) == piece);
        }
        // What no one named keeps its zeroes.
        let last = game.memory.len() - PAGE_SIZE;
        assert!(bytes_of(&game.memory, last, PAGE_SIZE).iter().all(|b| *b == 0));
    }
    game.close();
    domains.assert_empty();
}
