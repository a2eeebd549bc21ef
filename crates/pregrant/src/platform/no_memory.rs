//! Memory that there is none of: a front maps no pages of its back, and a back grants none.
#![expect(unsafe_code, reason = "`SharedBytes` of a type without values")]

use crate::shm::SharedBytes;
use core::ptr::NonNull;

/// A range of memory that cannot exist: the [`Map`](super::PeerMem::Map) of a platform for fronts
/// alone, and the [`Region`](super::GrantPool::Region) of one for backs.
#[derive(Debug)]
pub enum NoMemory {}

// SAFETY: there is no such value.
unsafe impl SharedBytes for NoMemory {
    fn base(&self) -> NonNull<u8> {
        match *self {}
    }
    fn len(&self) -> usize {
        match *self {}
    }
}
