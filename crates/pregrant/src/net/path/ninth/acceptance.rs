//! Pages that stay mapped, for a front that promises to use the same ones.

use super::back::NinthPath;
use crate::net::path::acceptance::{Accept, Accepted, Accepting, Lost, Said};
use crate::net::path::any_back::AnyPath;
use crate::platform::{Access, Platform};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct AcceptNinth {
    /// Pages of a queue and direction at most; 0: none.
    pub limit: usize,
}

impl<P: Platform> Accept<P> for AcceptNinth {
    fn accept(
        &mut self,
        cx: &mut Accepting<'_, P>,
        _queue: usize,
        _said: Said<'_>,
    ) -> Result<Accepted<P>, Lost> {
        if !cx.front.ninth || self.limit == 0 {
            return Ok(Accepted::NONE);
        }
        let path = |acc| Some(AnyPath::Ninth(NinthPath::new(self.limit, acc)));
        Ok(Accepted { tx: path(Access::ReadOnly), rx: path(Access::ReadWrite), ..Accepted::NONE })
    }
}
