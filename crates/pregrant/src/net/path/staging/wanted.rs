//! The staging buffers that a front's owner would like, and what of it a back offers.
//!
//! What a back may do: offer any lengths; those that are no lengths were left out when its keys
//! were read, and a few are tried where memory is short.

use super::keys::{Offer, SENT_ON_SINCE};
use super::list::DataLen;
use crate::net::path::PathNotOffered;
use alloc::vec;
use alloc::vec::Vec;

/// Lengths that are tried below the wanted one.
const SHORTER_MAX: usize = 4;

/// See the module. By default none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Buffers {
    /// Bytes of a TX frame that fit a staging buffer; None: ordinary grants.
    pub tx: Option<DataLen>,
    /// The same for RX.
    pub rx: Option<DataLen>,
    /// A received buffer is sent on by TX as it is, where a
    /// [hook](crate::net::front::FrontQueue::recv_hooked) says so and the back can
    /// (docs/protocol 3.5); with more RX buffers then, as many as there are TX ids and a list has
    /// room for: 4096 for slots and spare ones. Where none is left for those (RX rings of 16 pages)
    /// nothing is sent on; [`sends_on`](crate::net::front::TxFront::sends_on) says it.
    pub sent_on: bool,
}

impl Buffers {
    /// None.
    pub const NONE: Self = Self { tx: None, rx: None, sent_on: false };

    /// Of these lengths.
    pub const fn of(tx: Option<DataLen>, rx: Option<DataLen>) -> Self {
        Self { tx, rx, sent_on: false }
    }

    /// What of it such a back has.
    pub(super) fn offered_by(self, offer: &Offer) -> Self {
        let offered = |len: Option<DataLen>| len.filter(|len| offer.sizes.contains(len));
        let sent_on = self.sent_on && offer.revision >= SENT_ON_SINCE;
        Self { tx: offered(self.tx), rx: offered(self.rx), sent_on }
    }

    /// What of it such a back has not. Lengths do not matter where another path is `alone`.
    pub(super) fn not_offered(self, offer: &Offer, alone: bool) -> Vec<PathNotOffered> {
        let mut all = Vec::new();
        let lens = [self.tx, self.rx].into_iter().flatten();
        for asked in lens.filter(|len| !alone && !offer.sizes.contains(len)) {
            let not_offered = PathNotOffered::DataLen { asked, offered: offer.sizes.clone() };
            if !all.contains(&not_offered) {
                all.push(not_offered);
            }
        }
        if self.sent_on && offer.revision < SENT_ON_SINCE {
            all.push(PathNotOffered::SendingOn);
        }
        all
    }

    /// These, then with shorter ones of the lengths that a back knows, then none.
    pub(super) fn smaller(self, offered: &[DataLen]) -> Vec<Self> {
        let longest = self.tx.max(self.rx);
        if longest.is_none() {
            return vec![self];
        }
        let mut lens: Vec<Option<DataLen>> = offered
            .iter()
            .filter(|len| Some(**len) < longest && !len.copy_only())
            .map(|len| Some(*len))
            .collect();
        lens.sort_unstable();
        lens.dedup();
        lens.reverse();
        lens.truncate(SHORTER_MAX);
        let lens = [longest].into_iter().chain(lens).chain([None]);
        lens.map(|len| Self { tx: self.tx.min(len), rx: self.rx.min(len), ..self }).collect()
    }
}
