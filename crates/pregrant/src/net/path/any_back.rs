//! Any of the paths at the back, as one type, made from the list `paths!`: nothing to add here.
//!
//! ```text
//!   Chain --> AnyPath --match, once a batch--> CopyPath, StagingPath ... each path's own type
//! ```

use super::PageExchange;
use super::back::{BackPath, ByteArea, RequestClaims, Shared};
use super::held::HoldsFrames;
use super::negotiation::Negotiation;
use super::path_name::{BufferNames, PathName};
use crate::grants::MappedStats;
use crate::net::batch::{Claim, Claims, RxBatch, Todo, TxBatch};
use crate::platform::{GrantPool, Platform};
use crate::port::{Arena, Burst, Piece, Token};
use crate::units::DomId;
use crate::wire::netif::TxRequest;
use alloc::sync::Arc;
use alloc::vec::Vec;

macro_rules! any_path {
    ({} $($(#[$doc:meta])* $path:ident = $module:ident, $name:literal;)*) => {
        /// The paths that a queue can run, matched once per batch.
        pub enum AnyPath<P: Platform> {
            $($(#[$doc])* $path(<super::$module::$path as Negotiation>::Back<P>),)*
        }

        /// Which requests are the paths' own, by their flags: as each path says of itself.
        #[derive(Clone, Copy, Default, Debug)]
        pub struct AnyClaims {
            $($module: <super::$module::$path as Negotiation>::Claims,)*
        }

        impl Claims for AnyClaims {
            #[inline(always)]
            fn any(self) -> bool {
                false $(|| self.$module.any())*
            }

            #[inline(always)]
            fn claim(self, req: &TxRequest) -> Option<Claim> {
                $(
                    if self.$module.claims(req) {
                        return <super::$module::$path as Negotiation>::Claims::CLAIM;
                    }
                )*
                None
            }

            #[inline(always)]
            fn is_place(self, claim: Claim, req: &TxRequest) -> Option<bool> {
                $(
                    if <super::$module::$path as Negotiation>::Claims::CLAIM.is_some_and(|own| own.is(claim)) {
                        return self.$module.is_place(req);
                    }
                )*
                None
            }

            #[inline(always)]
            fn buffer_flag(self) -> u16 {
                0 $(| self.$module.buffer_flag())*
            }
        }

        const _: () = {
            let all = [$(<super::$module::$path as Negotiation>::Claims::CLAIM),*];
            let mut k = 0;
            while k < all.len() * all.len() {
                if let (true, Some(a), Some(b)) = (k / all.len() < k % all.len(), all[k / all.len()], all[k % all.len()]) {
                    assert!(!a.is(b), "each path has its own");
                }
                k += 1;
            }
        };

        impl<P: Platform> AnyPath<P> {
            /// Says in `claims` which requests are its own.
            pub fn claim(&self, claims: &mut AnyClaims) {
                match self {
                    $(Self::$path(path) => claims.$module = super::$module::$path::claims::<P>(path),)*
                }
            }

            /// [`BackPath::take_over`], from the same path.
            #[inline(always)]
            pub fn take_over(&mut self, from: &mut Self) {
                match (self, from) {
                    $((Self::$path(path), Self::$path(from)) => BackPath::<P>::take_over(path, from),)*
                    _ => {}
                }
            }
        }
    };
}

paths!(any_path {});

#[inline(always)]
fn name<P: Platform, B: BackPath<P>>(_: &B) -> PathName {
    B::NAME
}

impl<P: Platform> AnyPath<P> {
    /// [`BackPath::NAME`].
    #[inline(always)]
    pub fn name(&self) -> PathName {
        with_back!(self, path => name::<P, _>(path))
    }

    /// [`BackPath::serves_all`].
    pub fn serves_all(&self) -> bool {
        with_back!(self, path => BackPath::<P>::serves_all(path))
    }

    /// [`BackPath::buffers`].
    pub fn buffers(&self) -> Option<BufferNames> {
        with_back!(self, path => BackPath::<P>::buffers(path))
    }

    /// [`BackPath::room`].
    #[inline(always)]
    pub fn room(&mut self) -> Option<&mut dyn ByteArea> {
        with_back!(self, path => BackPath::<P>::room(path))
    }

    /// [`BackPath::shared`].
    pub fn shared(&mut self) -> Option<&mut dyn Shared> {
        with_back!(self, path => BackPath::<P>::shared(path))
    }

    /// [`BackPath::exchange`].
    pub fn exchange(&self) -> Option<Arc<PageExchange<P>>> {
        with_back!(self, path => BackPath::<P>::exchange(path))
    }

    /// [`BackPath::is_lent`].
    pub fn is_lent(&self) -> bool {
        with_back!(self, path => BackPath::<P>::is_lent(path))
    }

    /// [`BackPath::into_lent`].
    pub fn into_lent(self) -> Option<<P::Grants as GrantPool>::Region> {
        with_back!(self, path => BackPath::<P>::into_lent(path))
    }

    /// [`BackPath::fetch`].
    #[inline(always)]
    pub fn fetch(&mut self, p: &P, of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        with_back!(self, path => path.fetch(p, of, batch, todo, out))
    }

    /// [`BackPath::deliver`].
    #[inline(always)]
    pub fn deliver(&mut self, p: &P, of: DomId, batch: &mut RxBatch, frames: &Burst<'_>, todo: Todo) -> Todo {
        with_back!(self, path => path.deliver(p, of, batch, frames, todo))
    }

    /// [`BackPath::retire`].
    pub fn retire(&mut self, p: &P, done: &mut Vec<Token>) {
        with_back!(self, path => path.retire(p, done))
    }

    /// [`BackPath::piece`].
    #[inline]
    pub fn piece(&self, i: usize, k: usize) -> Option<Piece<'_>> {
        with_back!(self, path => BackPath::<P>::piece(path, i, k))
    }

    /// [`BackPath::holds_frames`].
    pub fn holds_frames(&mut self) -> Option<&mut dyn HoldsFrames<P>> {
        with_back!(self, path => path.holds_frames())
    }

    /// [`BackPath::pages`].
    pub fn pages(&self) -> Option<usize> {
        with_back!(self, path => BackPath::<P>::pages(path))
    }

    /// [`BackPath::kept`].
    pub fn kept(&self) -> Option<MappedStats> {
        with_back!(self, path => BackPath::<P>::kept(path))
    }

    /// [`BackPath::limit_pages`].
    pub fn limit_pages(&mut self, p: &P, pages: usize) {
        with_back!(self, path => path.limit_pages(p, pages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::local::LocalDomain;

    /// Each path's types are of the path that they are said to be of.
    #[test]
    fn each_path_has_its_own_name() {
        each_path!(Path => {
            let back = <<Path as Negotiation>::Back<LocalDomain> as BackPath<LocalDomain>>::NAME;
            assert_eq!(back, Path::NAME);
        });
        let mut names = Vec::new();
        each_path!(Path => names.push(Path::NAME));
        assert_eq!(names, PathName::ALL);
    }
}
