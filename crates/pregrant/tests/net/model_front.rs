//! Tests of the model front: each wrong answer that it must detect, written to the ring by the
//! test.
#![cfg(not(miri))]

use pregrant::platform::local::Pages;
use pregrant::ring::{NetRx, NetTx, RingKind, RingMem, RingPages, Word};
use pregrant::wire::netif::{
    Extra, RSP_ERROR, RSP_NULL, RSP_OKAY, RXF_EXTRA_INFO, RXF_MORE_DATA, RxRequest, RxResponse, TxRequest,
    TxResponse,
};
use pregrant_testkit::model_front::{ModelFault, RxModel, Slot, TxModel};

type Memory<K> = RingPages<K, Pages>;

const START: u32 = u32::MAX - 1; // the indices wrap in every test

fn ring<K: RingKind>() -> (Memory<K>, Memory<K>) {
    let pages = Pages::new(1);
    (RingPages::new(pages.clone()), RingPages::new(pages))
}

fn data(id: u16) -> Slot {
    Slot::Data(TxRequest { gref: 77, offset: 5, flags: 6, id, size: 900 })
}

fn extra() -> Slot {
    Slot::extra(Extra::Gso { size: 1448, gso_type: 1 }, false)
}

/// For each frame, the status of each slot.
type Answers = Result<Vec<Vec<i16>>, ModelFault>;

/// Sends `frames`, answers with `answers`, and returns the model's verdict.
fn tx(frames: &[&[Slot]], answers: &[(u16, i16)]) -> (Answers, Result<(), ModelFault>) {
    let (front, back) = ring::<NetTx>();
    let mut model = TxModel::starting_at(front, START);
    for frame in frames {
        model.play(frame);
    }
    for (k, &(id, status)) in answers.iter().enumerate() {
        back.write::<1>(START.wrapping_add(k as u32), [TxResponse { id, status }.to_word()]);
    }
    back.store(Word::RspProd, START.wrapping_add(answers.len() as u32));
    (model.answers(), model.finish())
}

#[test]
fn tx_right_answers_pass() {
    let frames: &[&[Slot]] = &[&[data(3)], &[data(4), extra(), data(1)], &[data(2), data(0)]];
    let answers =
        [(3, RSP_OKAY), (4, RSP_OKAY), (9, RSP_NULL), (1, RSP_ERROR), (2, RSP_ERROR), (0, RSP_OKAY)];
    let statuses = vec![vec![RSP_OKAY], vec![RSP_OKAY, RSP_NULL, RSP_ERROR], vec![RSP_ERROR, RSP_OKAY]];
    assert_eq!(tx(frames, &answers), (Ok(statuses), Ok(())));
    assert_eq!(tx(&[], &[]), (Ok(vec![]), Ok(())));
}

#[test]
fn tx_a_double_answer_is_found() {
    let double = ModelFault::NotInFlight { index: START.wrapping_add(1), found: 3 };
    assert_eq!(tx(&[&[data(3)], &[data(4)]], &[(3, RSP_OKAY), (3, RSP_OKAY)]).0, Err(double));
    let double = ModelFault::NotInFlight { index: START.wrapping_add(1), found: 3 };
    assert_eq!(tx(&[&[data(3), data(4)]], &[(3, RSP_OKAY), (3, RSP_OKAY)]).0, Err(double));
    let more = ModelFault::Overrun { rsp_prod: START.wrapping_add(2), in_flight: 1 };
    assert_eq!(tx(&[&[data(3)]], &[(3, RSP_OKAY), (3, RSP_OKAY)]).0, Err(more));
}

#[test]
fn tx_a_missing_answer_is_found() {
    let (answers, end) = tx(&[&[data(3)], &[data(4), extra()]], &[(3, RSP_OKAY)]);
    assert_eq!((answers, end), (Ok(vec![vec![RSP_OKAY]]), Err(ModelFault::Missing { in_flight: 2 })));
}

#[test]
fn tx_answers_out_of_order_are_found() {
    let swapped = Err(ModelFault::OutOfOrder { index: START, expected: 3, found: 4 });
    assert_eq!(tx(&[&[data(3)], &[data(4)]], &[(4, RSP_OKAY), (3, RSP_OKAY)]).0, swapped);
    assert_eq!(tx(&[&[data(3), data(4)]], &[(4, RSP_OKAY), (3, RSP_OKAY)]).0, swapped);
    let late = Err(ModelFault::NotNull { index: START.wrapping_add(1), status: RSP_OKAY });
    assert_eq!(tx(&[&[data(3), extra(), data(4)]], &[(3, RSP_OKAY), (4, RSP_OKAY), (0, RSP_NULL)]).0, late);
}

#[test]
fn tx_an_index_inside_a_frame_is_found() {
    let inside = Err(ModelFault::MidFrame { rsp_prod: START.wrapping_add(1) });
    assert_eq!(tx(&[&[data(3), data(4)]], &[(3, RSP_OKAY)]).0, inside);
    assert_eq!(tx(&[&[data(3), extra()]], &[(3, RSP_OKAY)]).0, inside);
}

#[test]
fn tx_statuses_that_do_not_exist_are_found() {
    for status in [RSP_NULL, 2, -3] {
        assert_eq!(tx(&[&[data(3)]], &[(3, status)]).0, Err(ModelFault::BadStatus { index: START, status }));
    }
}

/// A response has 4 bytes; the other 8 bytes of the slot still hold the request
/// (docs/protocol 2.2).
#[test]
fn tx_bytes_written_behind_the_response_are_found() {
    for words in [[3, 0, 0], [3, 0x0006_0005, 0]] {
        let (front, back) = ring::<NetTx>();
        let mut model = TxModel::starting_at(front, START);
        model.play(&[data(3)]);
        back.write::<3>(START, words);
        back.store(Word::RspProd, START.wrapping_add(1));
        assert_eq!(model.answers(), Err(ModelFault::SlotTouched { index: START }));
    }
}

fn rx(answers: &[RxResponse]) -> (Result<Vec<usize>, ModelFault>, u32) {
    let (front, back) = ring::<NetRx>();
    let mut model = RxModel::starting_at(front, START);
    for id in 0..8 {
        model.post(RxRequest { id, gref: 1 });
    }
    for (k, rsp) in answers.iter().enumerate() {
        back.write::<2>(START.wrapping_add(k as u32), rsp.to_words());
    }
    back.store(Word::RspProd, START.wrapping_add(answers.len() as u32));
    let frames = model.frames().map(|frames| frames.iter().map(|f| f.bytes()).collect());
    (frames, model.in_flight())
}

fn rsp(id: u16, flags: u16, status: i16) -> RxResponse {
    RxResponse { id, offset: 0, flags, status }
}

#[test]
fn rx_right_answers_pass() {
    let gso = RxResponse::from_words(Extra::Gso { size: 1448, gso_type: 1 }.to_words(false));
    let answers =
        [rsp(0, 0, 60), rsp(1, RXF_EXTRA_INFO | RXF_MORE_DATA, 4096), gso, rsp(3, 0, 4), rsp(4, 0, -1)];
    assert_eq!(rx(&answers), (Ok(vec![60, 4100, 0]), 3));
}

#[test]
fn rx_answers_double_out_of_order_or_cut_are_found() {
    let index = START.wrapping_add(1);
    assert_eq!(rx(&[rsp(0, 0, 60), rsp(0, 0, 60)]).0, Err(ModelFault::NotInFlight { index, found: 0 }));
    assert_eq!(
        rx(&[rsp(0, 0, 60), rsp(2, 0, 60)]).0,
        Err(ModelFault::OutOfOrder { index, expected: 1, found: 2 })
    );
    assert_eq!(rx(&[rsp(0, RXF_MORE_DATA, 60)]).0, Err(ModelFault::MidFrame { rsp_prod: index }));
    assert_eq!(rx(&[rsp(0, RXF_EXTRA_INFO, 60)]).0, Err(ModelFault::MidFrame { rsp_prod: index }));
    let many = Err(ModelFault::Overrun { rsp_prod: START.wrapping_add(9), in_flight: 8 });
    assert_eq!(rx(&[rsp(0, 0, 60); 9]).0, many);
}
