//! A shared ring, byte by byte: the header of Xen's `io/ring.h`, then slots of a size that the
//! protocol says.

use pregrant::shm::SharedBytes;

/// Offsets of the header's words.
const REQ_PROD: usize = 0;
const REQ_EVENT: usize = 4;
const RSP_PROD: usize = 8;
const RSP_EVENT: usize = 12;
const SLOTS: usize = 64;

/// One end's view of a shared ring, byte by byte.
pub struct Page<M> {
    memory: M,
    slot_bytes: usize,
    pub slots: u32,
}

impl<M: SharedBytes> Page<M> {
    /// A ring with as many slots as fit, a power of two.
    pub fn new(memory: M, slot_bytes: usize) -> Self {
        let slots = ((memory.len() - SLOTS) / slot_bytes).ilog2();
        Self { memory, slot_bytes, slots: 1 << slots }
    }

    pub fn init(&self) {
        self.memory.zero();
        self.store(REQ_EVENT, 1);
        self.store(RSP_EVENT, 1);
    }

    pub fn into_memory(self) -> M {
        self.memory
    }

    fn store(&self, at: usize, value: u32) {
        assert!(self.memory.store_u32(at, value));
    }
    pub fn req_prod(&self) -> u32 {
        self.memory.load_u32(REQ_PROD).unwrap()
    }
    pub fn rsp_prod(&self) -> u32 {
        self.memory.load_u32(RSP_PROD).unwrap()
    }
    pub fn set_req_prod(&self, value: u32) {
        self.store(REQ_PROD, value);
    }
    pub fn set_rsp_prod(&self, value: u32) {
        self.store(RSP_PROD, value);
    }
    pub fn set_rsp_event(&self, value: u32) {
        self.store(RSP_EVENT, value);
    }
    pub fn set_req_event(&self, value: u32) {
        self.store(REQ_EVENT, value);
    }

    fn at(&self, index: u32) -> usize {
        SLOTS + (index % self.slots) as usize * self.slot_bytes
    }

    /// Writes bytes of a slot; the rest of it stays as it is.
    pub fn put(&self, index: u32, offset: usize, bytes: &[u8]) {
        assert!(
            offset + bytes.len() <= self.slot_bytes && self.memory.copy_in(self.at(index) + offset, bytes)
        );
    }

    /// Bytes of a slot.
    pub fn get<const N: usize>(&self, index: u32, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        assert!(offset + N <= self.slot_bytes && self.memory.copy_out(self.at(index) + offset, &mut bytes));
        bytes
    }
    pub fn u8(&self, index: u32, offset: usize) -> u8 {
        self.get::<1>(index, offset)[0]
    }
    pub fn u16(&self, index: u32, offset: usize) -> u16 {
        u16::from_le_bytes(self.get(index, offset))
    }
    pub fn i16(&self, index: u32, offset: usize) -> i16 {
        i16::from_le_bytes(self.get(index, offset))
    }
    pub fn u32(&self, index: u32, offset: usize) -> u32 {
        u32::from_le_bytes(self.get(index, offset))
    }
    pub fn u64(&self, index: u32, offset: usize) -> u64 {
        u64::from_le_bytes(self.get(index, offset))
    }
}
