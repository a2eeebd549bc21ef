//! A table of mapped pages for each queue of a front with a control ring. The guest fills it by
//! control requests.

use super::LIMIT_MAX;
use super::back::GrefMappingPath;
use super::exchange::GrefExchange;
use super::requests::QUEUES_MAX;
use super::table::GrefTable;
use crate::net::path::acceptance::{Accepted, Accepting};
use crate::net::path::any_back::AnyPath;
use crate::platform::Platform;
use alloc::boxed::Box;
use alloc::sync::Arc;

/// Makes the table of mapped pages of a queue, with at most `limit` entries; 0: the queue gets
/// none.
#[inline(never)] // as of each path: a kernel's stack is small
pub fn accept<P: Platform>(limit: usize, cx: &Accepting<'_, P>, queue: usize) -> Accepted<P> {
    let limit = limit.min(LIMIT_MAX);
    if cx.front.ctrl.is_none() || limit == 0 || queue >= QUEUES_MAX {
        return Accepted::NONE;
    }
    let exchange = Arc::new(GrefExchange::default());
    let path =
        |table| Some(AnyPath::GrefMapping(GrefMappingPath::with_exchange(table, Arc::clone(&exchange))));
    Accepted { tx: path(Some(Box::new(GrefTable::new(limit)))), rx: path(None), ..Accepted::NONE }
}
