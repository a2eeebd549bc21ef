//! Grant table entries and the status of grant operations (PROTOCOL.md 8.1).

/// Outcome of one grant operation (`GNTST_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantStatus(pub i16);

impl GrantStatus {
    /// `GNTST_okay`.
    pub const OKAY: Self = Self(0);
    /// `GNTST_general_error`.
    pub const GENERAL_ERROR: Self = Self(-1);
    /// `GNTST_bad_domain`.
    pub const BAD_DOMAIN: Self = Self(-2);
    /// `GNTST_bad_gntref`.
    pub const BAD_GNTREF: Self = Self(-3);
    /// `GNTST_permission_denied`.
    pub const PERMISSION_DENIED: Self = Self(-8);
    /// `GNTST_bad_page`.
    pub const BAD_PAGE: Self = Self(-9);
    /// `GNTST_bad_copy_arg`.
    pub const BAD_COPY_ARG: Self = Self(-10);
}
