//! A table of mapped pages for each queue of a front with a control ring. The guest fills it by
//! control requests.

use super::LIMIT_MAX;
use super::back::GrefMappingPath;
use super::exchange::GrefExchange;
use super::requests::QUEUES_MAX;
use super::table::GrefTable;
use crate::memory;
use crate::net::path::acceptance::{Accepted, Accepting, Lost};
use crate::net::path::any_back::AnyPath;
use crate::platform::Platform;
use alloc::sync::Arc;

/// Makes the table of mapped pages of a queue, with at most `limit` entries; 0: the queue gets
/// none.
#[inline(never)] // as of each path: a kernel's stack is small
pub fn accept<P: Platform>(limit: usize, cx: &Accepting<'_, P>, queue: usize) -> Result<Accepted<P>, Lost> {
    let limit = limit.min(LIMIT_MAX);
    if cx.front.ctrl.is_none() || limit == 0 || queue >= QUEUES_MAX {
        return Ok(Accepted::NONE);
    }
    let exchange = Arc::new(GrefExchange::default());
    let path = |table| {
        GrefMappingPath::with_exchange(table, Arc::clone(&exchange))
            .map(|path| Some(AnyPath::GrefMapping(path)))
    };
    let table = memory::boxed(GrefTable::new(limit)?)?;
    Ok(Accepted { tx: path(Some(table))?, rx: path(None)?, ..Accepted::NONE })
}
